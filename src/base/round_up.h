// Multiples of sizes: of pages, of vectors, of slices.
#pragma once

namespace zero {

// The least multiple of it that is not below `value`, which is not negative.
template <class T>
constexpr T round_up(T value, T multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace zero
