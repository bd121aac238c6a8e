// Numbers in 8 bits, block by block: each block has a scale, the largest magnitude in it, and each number a
// code into the dynamic map, which spends its codes on seven decades and its precision on large numbers
// (Dettmers et al., 2022: 8-bit optimizers via block-wise quantization). Rounded to the nearest value of the
// map, except that of numbers under a root, Signs::positive, only zero becomes zero: a step is divided by their root.
// Zeros and a positive extreme are exact; the map ends at -0.993. The same bits on every instruction set. No torch.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/targets.h"

namespace zero {

inline constexpr std::int64_t kStateBlock = 256;  // elements of a block, at most

enum class Signs : std::uint8_t { both, positive };

// The value of each code, ascending, in [-1, 1] or [0, 1].
const std::array<float, 256>& dynamic_map(Signs signs);

// `count` numbers, at most a block. Code 0 with scale 0 is zero.
void dequantize(const std::uint8_t* codes, float scale, Signs signs, float* values, std::int64_t count);
// Returns the scale, which is finite: infinities become the largest number. Values must not be negative for
// Signs::positive.
float quantize(const float* values, Signs signs, std::uint8_t* codes, std::int64_t count);

}  // namespace zero

namespace zero::codes {

// Codes count steps from zero's. Within a decade, values are a linear function of the step, so that both ways are
// arithmetic: a vector processor looks up a table in memory one element at a time. The last piece is 1 alone.
struct Pieces {
  static constexpr std::size_t kDecades = 7, kCount = kDecades + 1;
  // The first decade has `first` values and every next one twice as many.
  explicit Pieces(Signs signs) : zero(signs == Signs::both ? 127 : 0), first(signs == Signs::both ? 1 : 2) {
    double step = 1, cells = first, top = 1e-6;
    for (std::size_t i = 0; i < kDecades; ++i, step += cells, cells *= 2, top *= 10)
      set(i, step, step + cells - 1, top * 0.9 / cells, top * (0.1 + 0.9 * (0.5 - step) / cells));
    set(kDecades, step, step, 0, 1);
    for (std::size_t i = 0; i < kCount; ++i)
      middle[i] = (value(i, lowest[i]) + (i ? value(i - 1, highest[i - 1]) : 0)) / 2;
  }

  float value(std::size_t piece, float step) const { return std::fma(step, slope[piece], base[piece]); }

  std::int32_t zero;  // its code
  float first;
  std::array<float, kCount> lowest{}, highest{};  // steps
  std::array<float, kCount> slope{}, base{};      // value = slope step + base
  std::array<float, kCount> inverse{}, offset{};  // the step nearest to a value, rounded down: inverse value + offset
  std::array<float, kCount> middle{};             // between the lowest value and the one before

 private:
  void set(std::size_t i, double low, double high, double rise, double start) {
    lowest[i] = static_cast<float>(low);
    highest[i] = static_cast<float>(high);
    slope[i] = static_cast<float>(rise);
    base[i] = static_cast<float>(start);
    inverse[i] = static_cast<float>(rise > 0 ? 1 / rise : 0);
    offset[i] = static_cast<float>(rise > 0 ? 0.5 - start / rise : high);
  }
};

ZERO_BOTH inline float decode(std::uint8_t code, const Pieces& p, float scale) {
  const std::int32_t steps = code - p.zero;
  const auto step = static_cast<float>(std::abs(steps));
  float slope = 0, base = 0;
  for (std::size_t k = 0; k < Pieces::kCount; ++k) {
    slope = step >= p.lowest[k] ? p.slope[k] : slope;
    base = step >= p.lowest[k] ? p.base[k] : base;
  }
  const float value = std::fma(step, slope, base) * scale;
  return steps < 0 ? -value : value;
}

// As integers, magnitudes are in the order of their values.
ZERO_BOTH inline std::int32_t magnitude(float value) {
  return std::bit_cast<std::int32_t>(value) & 0x7fffffff;
}

// Of a block, by its largest magnitude; `inverse` is what encode() takes. Below the normal numbers a scale has no
// inverse: such blocks are zero.
struct Scale {
  float value, inverse;
};
ZERO_BOTH inline Scale scale_of(std::int32_t largest_magnitude) {
  constexpr auto kLargest = std::bit_cast<std::int32_t>(std::numeric_limits<float>::max());
  const auto scale = std::bit_cast<float>(std::min(largest_magnitude, kLargest));
  const float inverse = 1 / scale;
  const bool usable = std::isfinite(inverse);
  return {usable ? scale : 0, usable ? inverse : 0};
}

ZERO_BOTH inline std::uint8_t encode(float number, const Pieces& p, float inverse) {
  const std::int32_t least = p.zero == 0 ? 1 : 0;  // of what is not zero
  const float value = number * inverse;
  const float size = std::abs(value);
  float rise = 0, offset = 0, highest = 0;
  for (std::size_t k = 0; k < Pieces::kCount; ++k) {
    rise = size >= p.middle[k] ? p.inverse[k] : rise;
    offset = size >= p.middle[k] ? p.offset[k] : offset;
    highest = size >= p.middle[k] ? p.highest[k] : highest;
  }
  const float nearest = std::fma(size, rise, offset);
  const auto near = static_cast<std::int32_t>(nearest < highest ? nearest : highest);
  const std::int32_t step = std::max(near, size == 0 ? 0 : least);
  return static_cast<std::uint8_t>(value < 0 ? p.zero - std::min(step, p.zero) : p.zero + step);
}

}  // namespace zero::codes
