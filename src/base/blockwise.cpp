#include "base/blockwise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/simd.h"

namespace zero {
namespace {

constexpr int kDecades = 7;
// Magnitudes are looked up by exponent and seven bits of the mantissa, which tell all but two neighbours apart.
constexpr int kDroppedBits = 16;
constexpr std::int32_t kOne = 0x3f800000;       // bits of 1
constexpr std::int32_t kSmallest = 0x33800000;  // of 2^-24, below every value of the map
constexpr std::size_t kBins = ((kOne - kSmallest) >> kDroppedBits) + 1;

// Magnitudes in ascending order, from 0 on; the first decade has `first` of them and every next one twice as many.
std::vector<float> magnitudes(int first) {
  std::vector<float> result{0};
  for (int decade = 0; decade < kDecades; ++decade) {
    const int cells = first << decade;
    const double top = std::pow(10.0, decade - kDecades + 1);
    for (int cell = 0; cell < cells; ++cell)
      result.push_back(static_cast<float>(top * (0.1 + 0.9 * (cell + 0.5) / cells)));
  }
  result.push_back(1);
  return result;
}

struct Map {
  explicit Map(Signs signs) : zero(signs == Signs::both ? 127 : 0) {
    const std::vector<float> sizes = magnitudes(signs == Signs::both ? 1 : 2);
    last = static_cast<std::int32_t>(sizes.size()) - 1;
    for (std::int32_t code = 0; code < 256; ++code) {
      const std::int32_t steps = code - zero;
      const float size = sizes[static_cast<std::size_t>(std::abs(steps))];
      value[static_cast<std::size_t>(code)] = steps < 0 ? -size : size;
    }
    for (std::size_t i = 0; i < middle.size(); ++i)
      middle[i] = i + 1 < sizes.size() ? (sizes[i] + sizes[i + 1]) / 2 : 2;
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      const auto start = std::bit_cast<float>(kSmallest + (static_cast<std::int32_t>(bin) << kDroppedBits));
      const auto* const above = std::lower_bound(middle.begin(), middle.begin() + last, start);
      nearest[bin] = static_cast<std::int32_t>(above - middle.begin());
    }
  }

  std::int32_t zero;  // its code
  std::int32_t last;  // magnitude
  std::array<float, 256> value{};
  std::array<float, 256> middle{};            // between a magnitude and the next
  std::array<std::int32_t, kBins> nearest{};  // magnitude at the start of each bin
};

const Map& map(Signs signs) {
  static const Map both(Signs::both), positive(Signs::positive);
  return signs == Signs::both ? both : positive;
}

ZERO_MULTIVERSION void look_up(const std::uint8_t* codes, const float* value, float scale, float* values,
                               std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) values[i] = value[codes[i]] * scale;
}

// As integers, magnitudes are in the order of their values.
ZERO_MULTIVERSION std::int32_t largest_magnitude(const float* values, std::int64_t count) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<std::int32_t>(values[i]) & 0x7fffffff);
  return largest;
}

ZERO_MULTIVERSION void encode(const float* values, float inverse, const Map& map, std::uint8_t* codes,
                              std::int64_t count) {
  const std::int32_t zero = map.zero, below = zero == 0 ? 0 : map.last - 1;
  const std::int32_t least = zero == 0 ? 1 : 0;  // of what is not zero
  const float* const middle = map.middle.data();
  const std::int32_t* const nearest = map.nearest.data();
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::int32_t>(values[i] * inverse);
    const std::int32_t magnitude = std::min(bits & 0x7fffffff, kOne);
    const std::int32_t bin = (std::max(magnitude, kSmallest) - kSmallest) >> kDroppedBits;
    const std::int32_t start = nearest[bin];
    const std::int32_t near = start + (std::bit_cast<float>(magnitude) > middle[start] ? 1 : 0);
    const std::int32_t step = std::max(near, magnitude == 0 ? 0 : least);
    codes[i] = static_cast<std::uint8_t>(bits < 0 ? zero - std::min(step, below) : zero + step);
  }
}

}  // namespace

const std::array<float, 256>& dynamic_map(Signs signs) {
  return map(signs).value;
}

void dequantize(const std::uint8_t* codes, float scale, Signs signs, float* values, std::int64_t count) {
  look_up(codes, map(signs).value.data(), scale, values, count);
}

float quantize(const float* values, Signs signs, std::uint8_t* codes, std::int64_t count) {
  constexpr auto kLargest = std::bit_cast<std::int32_t>(std::numeric_limits<float>::max());
  const auto scale = std::bit_cast<float>(std::min(largest_magnitude(values, count), kLargest));
  const float inverse = 1 / scale;
  // Below the normal numbers a scale has no inverse: such blocks are zero.
  const bool usable = std::isfinite(inverse);
  encode(values, usable ? inverse : 0, map(signs), codes, count);
  return usable ? scale : 0;
}

}  // namespace zero
