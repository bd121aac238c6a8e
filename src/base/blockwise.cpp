#include "base/blockwise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/simd.h"

namespace zero {
namespace {

constexpr std::size_t kDecades = 7;

// Codes count steps from zero's. Within a decade, values are a linear function of the step, so that both ways are
// arithmetic: a vector processor looks up a table in memory one element at a time. The last piece is 1 alone.
struct Pieces {
  static constexpr std::size_t kCount = kDecades + 1;
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

const Pieces& pieces(Signs signs) {
  static const Pieces both(Signs::both), positive(Signs::positive);
  return signs == Signs::both ? both : positive;
}

ZERO_MULTIVERSION void decode(const std::uint8_t* codes, const Pieces p, float scale, float* values,
                              std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t steps = codes[i] - p.zero;
    const auto step = static_cast<float>(std::abs(steps));
    float slope = 0, base = 0;
    for (std::size_t k = 0; k < Pieces::kCount; ++k) {
      slope = step >= p.lowest[k] ? p.slope[k] : slope;
      base = step >= p.lowest[k] ? p.base[k] : base;
    }
    const float value = std::fma(step, slope, base) * scale;
    values[i] = steps < 0 ? -value : value;
  }
}

// As integers, magnitudes are in the order of their values.
ZERO_MULTIVERSION std::int32_t largest_magnitude(const float* values, std::int64_t count) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<std::int32_t>(values[i]) & 0x7fffffff);
  return largest;
}

ZERO_MULTIVERSION void encode(const float* values, float inverse, const Pieces p, std::uint8_t* codes,
                              std::int64_t count) {
  const std::int32_t zero = p.zero;
  const std::int32_t least = zero == 0 ? 1 : 0;  // of what is not zero
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = values[i] * inverse;
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
    codes[i] = static_cast<std::uint8_t>(value < 0 ? zero - std::min(step, zero) : zero + step);
  }
}

std::array<float, 256> values(Signs signs) {
  std::array<std::uint8_t, 256> codes;
  std::iota(codes.begin(), codes.end(), std::uint8_t{0});
  std::array<float, 256> result;
  dequantize(codes.data(), 1, signs, result.data(), 256);
  return result;
}

}  // namespace

const std::array<float, 256>& dynamic_map(Signs signs) {
  static const std::array<float, 256> both = values(Signs::both), positive = values(Signs::positive);
  return signs == Signs::both ? both : positive;
}

void dequantize(const std::uint8_t* codes, float scale, Signs signs, float* values, std::int64_t count) {
  decode(codes, pieces(signs), scale, values, count);
}

float quantize(const float* values, Signs signs, std::uint8_t* codes, std::int64_t count) {
  constexpr auto kLargest = std::bit_cast<std::int32_t>(std::numeric_limits<float>::max());
  const auto scale = std::bit_cast<float>(std::min(largest_magnitude(values, count), kLargest));
  const float inverse = 1 / scale;
  // Below the normal numbers a scale has no inverse: such blocks are zero.
  const bool usable = std::isfinite(inverse);
  encode(values, usable ? inverse : 0, pieces(signs), codes, count);
  return usable ? scale : 0;
}

}  // namespace zero
