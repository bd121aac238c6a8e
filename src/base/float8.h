// The 8-bit floating-point formats (Micikevicius et al., 2022: FP8 formats for deep learning) and their
// conversions: exact to fp32; from fp32 rounded to nearest even, or at random, and saturating: what is beyond
// the largest number, infinity too, becomes the largest number. NaN stays NaN. Written, like base/half.h, so
// that loops over them vectorise and flushing denormals changes nothing.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/half.h"
#include "base/targets.h"

namespace zero {

// 4 bits of exponent, 3 of mantissa; no infinities, the largest number is 448.
struct E4m3 {
  static constexpr float kLargest = 448;
  std::uint8_t bits;
};

// 5 bits of exponent, 2 of mantissa: the upper half of an fp16; the largest number is 57344.
struct E5m2 {
  static constexpr float kLargest = 57344;
  std::uint8_t bits;
};

namespace float8 {

// What a format is to the conversions: bits of its mantissa, its smallest normal number, and the sign-less NaN.
template <int mantissa, int smallest_exponent, int nan>
struct Shape {
  static constexpr int kDropped = 23 - mantissa;         // bits of an fp32's mantissa
  static constexpr int kBias = 126 + smallest_exponent;  // of fp32's exponent over the format's
  static constexpr std::int32_t kSmallest = (127 + smallest_exponent)
                                            << 23;            // the smallest normal number, in fp32's bits
  static constexpr int kUnit = smallest_exponent - mantissa;  // the smallest number is 2^kUnit
  static constexpr std::int32_t kNan = nan;
};
using ShapeE4m3 = Shape<3, -6, 0x7f>;
using ShapeE5m2 = Shape<2, -14, 0x7f>;

// 2^exponent, of a normal fp32.
ZERO_BOTH constexpr float power(int exponent) {
  return std::bit_cast<float>((127 + exponent) << 23);
}

template <class S>
ZERO_BOTH std::uint8_t with_sign(std::int32_t magnitude, std::int32_t bits) {
  const std::int32_t nan = (bits & 0x7fffffff) > 0x7f800000 ? S::kNan : 0;
  return static_cast<std::uint8_t>(magnitude | nan | (bits >> 24 & 0x80));
}

// Below the smallest normal number the processor rounds, by a sum whose last bit is 2^kUnit; from there on the
// bits of that sum grow faster than those of the result.
template <class S>
ZERO_BOTH std::uint8_t nearest(float value, float largest) {
  const auto bits = std::bit_cast<std::int32_t>(value);
  const std::int32_t magnitude = std::min(bits & 0x7fffffff, std::bit_cast<std::int32_t>(largest));
  const std::int32_t clamped = std::max(magnitude, std::int32_t{S::kSmallest});
  const std::int32_t half = (1 << (S::kDropped - 1)) - 1;
  const std::int32_t normal = (clamped - (S::kBias << 23) + half + (clamped >> S::kDropped & 1)) >> S::kDropped;
  constexpr float anchor = power(S::kUnit + 23);
  const std::int32_t subnormal =
      std::bit_cast<std::int32_t>(std::bit_cast<float>(magnitude) + anchor) - std::bit_cast<std::int32_t>(anchor);
  return with_sign<S>(std::min(subnormal, normal), bits);
}

// `random` has kDropped random bits.
template <class S>
std::uint8_t at_random(float value, std::uint32_t random, float largest) {
  const auto bits = std::bit_cast<std::int32_t>(value);
  const std::int32_t magnitude = std::min(bits & 0x7fffffff, std::bit_cast<std::int32_t>(largest));
  const auto chance = static_cast<std::int32_t>(random & ((1U << S::kDropped) - 1));
  const std::int32_t normal = (std::max(magnitude, S::kSmallest) - (S::kBias << 23) + chance) >> S::kDropped;
  const float small = std::bit_cast<float>(std::min(magnitude, S::kSmallest));
  const auto steps = static_cast<std::int32_t>(small * power(S::kDropped - S::kUnit));
  const std::int32_t subnormal = (steps + chance) >> S::kDropped;
  return with_sign<S>(magnitude < S::kSmallest ? subnormal : normal, bits);
}

}  // namespace float8

ZERO_BOTH inline float widen(E5m2 value) {
  Fp16 wide;
  wide.bits = static_cast<std::uint16_t>(value.bits << 8);
  return widen(wide);
}

// As for fp16: a subnormal number s is 2^-6 (1 + s) less 2^-6.
ZERO_BOTH inline float widen(E4m3 value) {
  const std::int32_t code = value.bits & 0x7f;
  const std::int32_t normal = (code << 20) + (120 << 23);
  const auto subnormal = std::bit_cast<std::int32_t>(std::bit_cast<float>(normal + (1 << 23)) - 0x1p-6F);
  const std::int32_t finite = std::min(subnormal, normal);
  return std::bit_cast<float>((code == 0x7f ? 0x7fc00000 : finite) | (value.bits & 0x80) << 24);
}

ZERO_BOTH inline void narrow(float value, E4m3& out) {
  out.bits = float8::nearest<float8::ShapeE4m3>(value, E4m3::kLargest);
}
ZERO_BOTH inline void narrow(float value, E5m2& out) {
  out.bits = float8::nearest<float8::ShapeE5m2>(value, E5m2::kLargest);
}

// Up or down with a chance as large as what is cut off is to the step (stochastic rounding); `random` has 20
// and 21 random bits. What is exact stays.
inline void narrow_at_random(float value, std::uint32_t random, E4m3& out) {
  out.bits = float8::at_random<float8::ShapeE4m3>(value, random, E4m3::kLargest);
}
inline void narrow_at_random(float value, std::uint32_t random, E5m2& out) {
  out.bits = float8::at_random<float8::ShapeE5m2>(value, random, E5m2::kLargest);
}

// A tensor is scaled for FP8 by one power of two.
enum class Float8Format : std::uint8_t { e4m3, e5m2 };

// Beside the codes of a tensor, three numbers where they are.
struct Float8Scale {
  float inverse;  // of `scale`; the first, since CUDA's products read it from a multiple of 16 bytes only
  float largest;  // magnitude; NaN where there is one
  float scale;    // by which the values were multiplied; NaN where `largest` is not finite
};

namespace float8 {

constexpr double largest_of(Float8Format format) {
  return format == Float8Format::e4m3 ? double{E4m3::kLargest} : double{E5m2::kLargest};
}

// A power of two that brings `largest` below the format's.
ZERO_BOTH inline float scale_into(double format, double largest) {
  if (!std::isfinite(largest)) return std::bit_cast<float>(0x7fc00000);
  if (largest == 0) return 1;
  return power(std::clamp(std::ilogb(format / largest), -40, 40));
}

// `given`: what finite values are scaled by; 0: by their own largest magnitude.
ZERO_BOTH inline float scale_of(double format, float largest, float given) {
  return given != 0 && std::isfinite(largest) ? given : scale_into(format, largest);
}

}  // namespace float8
}  // namespace zero
