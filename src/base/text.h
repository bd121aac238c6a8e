// Numbers in words.
#pragma once

#include <array>
#include <charconv>
#include <string>

namespace zero {

// As few digits as give the same bits when read.
inline std::string shortest(double value) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr};
}

}  // namespace zero
