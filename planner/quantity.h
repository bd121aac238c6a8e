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

// The nearest number with so many significant digits.
double rounded(double value, int digits);

// Three digits, and all of those before the point: "1234", "80.0", "0.056".
std::string three_digits(double value);
// "80.0 GB", "3.21 MB", "640 bytes".
std::string in_units(std::int64_t bytes);

}  // namespace planner
