// The 16-bit floating-point formats and their conversions: exact to fp32, rounded to nearest even from
// fp32 (NaN stays NaN). Written so that loops over them vectorise on every instruction set: signed
// integers, no sum on one side of a choice only; and so that flushing denormals changes nothing.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/targets.h"

namespace zero {

struct Bf16 {
  std::uint16_t bits;
};

struct Fp16 {
  std::uint16_t bits;
  Fp16() = default;
  ZERO_BOTH explicit Fp16(float value);
};

ZERO_BOTH inline float widen(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// A normal number's exponent moves by 112, infinity's by 224. A subnormal number s is 2^-14 (1 + s) less
// 2^-14, and for the others that is no smaller than the number.
ZERO_BOTH inline float widen(Fp16 value) {
  constexpr std::int32_t infinity = 0x7c00 << 13;
  constexpr std::int32_t exponent = 112 << 23;
  const std::int32_t magnitude = (value.bits & 0x7fff) << 13;
  const std::int32_t normal = magnitude + exponent;
  const auto subnormal = std::bit_cast<std::int32_t>(std::bit_cast<float>(normal + (1 << 23)) - 0x1p-14f);
  const std::int32_t finite = std::min(subnormal, normal);
  const std::int32_t absolute = magnitude < infinity ? finite : finite + exponent;
  return std::bit_cast<float>(absolute | (value.bits & 0x8000) << 16);
}

ZERO_BOTH inline float widen(float value) {
  return value;
}
ZERO_BOTH inline double widen(double value) {
  return value;
}

ZERO_BOTH inline void narrow(float value, Bf16& out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const std::uint32_t quiet_nan = bits | 0x400000;
  out.bits = static_cast<std::uint16_t>((std::isnan(value) ? quiet_nan : rounded) >> 16);
}

// Towards zero.
ZERO_BOTH inline void cut(float value, Bf16& out) {
  out.bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

// Up or down with a chance as large as what is cut off is to the step (stochastic rounding); `random` has 16
// random bits. What is exact stays, what is finite stays finite: beyond the largest number it is cut off.
ZERO_BOTH inline void narrow_at_random(float value, std::uint32_t random, Bf16& out) {
  constexpr std::int32_t largest = 0x7f7fffff;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7fffffff);
  const auto raised = static_cast<std::int32_t>((bits & 0x7fffffff) + (random & 0xffff));
  const auto rounded = static_cast<std::uint32_t>(std::max(std::min(raised, largest), magnitude));
  const std::uint32_t quiet = std::isnan(value) ? 0x400000 : 0;
  out.bits = static_cast<std::uint16_t>((rounded | quiet | (bits & 0x80000000)) >> 16);
}

// Below 2^-14 the processor rounds: the last bit of 1/2 is that of a subnormal number. From there on the
// bits of half + value grow faster than those of the result.
ZERO_BOTH inline void narrow(float value, Fp16& out) {
  const auto bits = std::bit_cast<std::int32_t>(value);
  const std::int32_t magnitude = bits & 0x7fffffff;
  const std::int32_t clamped = std::clamp(magnitude, 0x38800000, 0x47800000);
  const std::int32_t normal = (clamped - (112 << 23) + 0xfff + (clamped >> 13 & 1)) >> 13;
  const std::int32_t subnormal = std::bit_cast<std::int32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  const std::int32_t nan = magnitude > 0x7f800000 ? 0x200 | (magnitude >> 13 & 0x3ff) : 0;
  out.bits = static_cast<std::uint16_t>(std::min(subnormal, normal) | nan | (bits >> 16 & 0x8000));
}

ZERO_BOTH inline Fp16::Fp16(float value) {
  narrow(value, *this);
}

}  // namespace zero
