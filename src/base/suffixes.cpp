#include "base/suffixes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/number.h"
#include "base/text.h"

namespace zero {
namespace {

constexpr std::int64_t kThousand = 1000, kMillion = 1'000'000, kBillion = 1'000'000'000, kTrillion = 1'000'000'000'000;
constexpr std::array<Suffix, 14> kBytes{{{"", 1},
                                         {"b", 1},
                                         {"k", kThousand},
                                         {"kb", kThousand},
                                         {"kib", std::int64_t{1} << 10},
                                         {"m", kMillion},
                                         {"mb", kMillion},
                                         {"mib", std::int64_t{1} << 20},
                                         {"g", kBillion},
                                         {"gb", kBillion},
                                         {"gib", std::int64_t{1} << 30},
                                         {"t", kTrillion},
                                         {"tb", kTrillion},
                                         {"tib", std::int64_t{1} << 40}}};

// Integers are counted exactly.
std::optional<std::int64_t> times(std::string_view number, std::int64_t factor) {
  constexpr auto most = static_cast<std::int64_t>(kMostCounted);
  std::int64_t count = 0;
  if (const auto integer = read_number<std::int64_t>(number, 0, most); integer.fault.empty()) {
    if (__builtin_mul_overflow(integer.value, factor, &count) || count > most) return {};
    return count;
  }
  const auto real = read_number<double>(number, 0, kMostCounted);
  const double product = real.value * static_cast<double>(factor);
  if (!real.fault.empty() || product > kMostCounted || (product > 0 && product < 1)) return {};
  return std::llround(product);
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(' ');
  return begin == text.npos ? std::string_view() : text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

std::pair<std::string_view, std::string_view> parted(std::string_view text) {
  text = trimmed(text);
  double ignored = 0;
  const char* const end = std::from_chars(text.data(), text.data() + text.size(), ignored).ptr;
  const auto length = static_cast<std::size_t>(end - text.data());
  return {text.substr(0, length), trimmed(text.substr(length))};
}

std::optional<std::int64_t> read_count(std::string_view text, std::span<const Suffix> suffixes) {
  const auto [number, unit] = parted(text);
  const auto suffix = std::ranges::find(suffixes, lower(unit), &Suffix::name);
  return suffix == suffixes.end() ? std::nullopt : times(number, suffix->factor);
}

std::optional<std::int64_t> read_bytes(std::string_view text) {
  return read_count(text, kBytes);
}

}  // namespace zero
