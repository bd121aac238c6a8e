// Numbers for people.
#pragma once

#include <cstdint>
#include <string>

namespace cli {

std::string fixed(double value, int digits);
std::string significant(double value, int digits);
std::string shortest(double value);               // reading it gives the same bits
std::string with_separators(std::int64_t value);  // 1,234,567
std::string human_bytes(std::int64_t bytes);      // 1.2 MiB

}  // namespace cli
