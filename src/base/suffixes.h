// Numbers with units, as people write them: 80GB, 7.5B, 2GiB.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace zero {

inline constexpr double kMostCounted = 1e18;

struct Suffix {
  std::string_view name;  // in small letters
  std::int64_t factor;
};

// Without blanks at its ends.
std::string_view trimmed(std::string_view text);
// "80" and "GB". An "e" between digits is the number's.
std::pair<std::string_view, std::string_view> parted(std::string_view text);
// The number with one of these behind it, from 0 to kMostCounted, rounded to an integer; none for another text.
std::optional<std::int64_t> read_count(std::string_view text, std::span<const Suffix> suffixes);
// The same of bytes: 500, 500M, 80GB, 2GiB.
std::optional<std::int64_t> read_bytes(std::string_view text);

}  // namespace zero
