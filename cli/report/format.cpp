#include "cli/report/format.h"

#include <cmath>

namespace cli {

std::string with_separators(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::size_t digits_begin = value < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > digits_begin + 3;) text.insert(at -= 3, ",");
  return text;
}

std::string counted(std::int64_t count, const std::string& what) {
  return with_separators(count) + " " + what + (count == 1 ? "" : "s");
}

std::string human_bytes(std::int64_t bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  for (; std::abs(value) >= 1024 && unit < 4; ++unit) value /= 1024;
  return fixed(value, unit ? 1 : 0) + " " + units[unit];
}

}  // namespace cli
