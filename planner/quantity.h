// Numbers as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace planner {

// "7.5e9", "7.5B", "350M", "1T", "7500000000": K, M, B (or G) and T are powers of a thousand. Throws zero::ConfigError
// for what is no whole number of at least 1.
std::int64_t parameters_of(std::string_view text);

// "80GB" (or "80G") is 80e9 bytes, "80GiB" 80 x 2^30; "80e9" and "500 MB" will do. Throws zero::ConfigError for what is
// no whole number of at least `least`, and for less than a million without a unit, where one was forgotten.
std::int64_t bytes_of(std::string_view text, std::int64_t least = 1);

// Bytes a second: "100Gbit" and "100 Gbit/s" are 12.5e9, as "12.5GB/s" is. Bits and bytes differ in nothing but the
// case of a letter elsewhere, so that other spellings are refused, and a number without a unit too. Throws
// zero::ConfigError.
double bandwidth_of(std::string_view text);

// The nearest number with so many significant digits.
double rounded(double value, int digits);

// Three digits, and all of those before the point: "1234", "80.0", "0.056".
std::string three_digits(double value);
// "80.0 GB", "3.21 MB", "640 bytes".
std::string in_units(std::int64_t bytes);

}  // namespace planner
