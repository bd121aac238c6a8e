#include "base/system_random.h"

#include <sys/random.h>

#include <utility>

#include "base/system_files.h"
#include "zero/error.h"

namespace zero {

std::array<std::uint8_t, 16> random_bytes() {
  std::array<std::uint8_t, 16> bytes{};
  const auto got = uninterrupted([&] { return getrandom(bytes.data(), bytes.size(), 0); });
  if (got != static_cast<ssize_t>(bytes.size())) throw CommError("the system draws no random numbers");
  return bytes;
}

std::string random_name(std::string prefix) {
  for (const std::uint8_t byte : random_bytes()) {
    prefix += "0123456789abcdef"[byte >> 4];
    prefix += "0123456789abcdef"[byte & 15];
  }
  return prefix;
}

}  // namespace zero
