// Four bits with a sign in blocks of 256, each with a scale in bf16, of either sign, by which the block's largest
// magnitude is -8: so it has all 16 codes, and what is clipped is at most half a step beyond 7, of values of the other
// sign. Rounded to the nearest, halves to even: by at most half a step, or a step where it is clipped, and what bf16
// makes of the scale. A block that is not finite becomes NaN. No torch.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/float8_blocks.h"
#include "base/half.h"
#include "base/int8_blocks.h"
#include "base/targets.h"
#include "zero/plan.h"

namespace zero {

namespace int4 {

inline constexpr std::uint16_t kNoNumber = 0x7fc0;  // bf16

// The step of the codes, of a block whose largest magnitudes have either sign: a bf16, whose lower half is zero.
ZERO_BOTH inline float step_of(float negative, float positive) {
  const float scale = (positive > negative ? -positive : negative) * 0.125F;
  Bf16 narrow_scale;
  narrow(scale, narrow_scale);
  return widen(narrow_scale);
}

// Below the normal numbers a step has no inverse: such blocks are zero.
ZERO_BOTH inline float inverse_of(float step) {
  constexpr float least = 1.17549435e-38F;
  return step >= least || step <= -least ? 1 / step : 0;
}

ZERO_BOTH inline std::uint8_t code_of(float scaled) {
  const float nearest = int8::nearest(scaled < -8 ? -8 : scaled > 7 ? 7 : scaled);
  return static_cast<std::uint8_t>(static_cast<std::int8_t>(nearest)) & 15;
}

ZERO_BOTH inline float value_of(std::uint8_t code) {
  return static_cast<float>(static_cast<std::int8_t>(code << 4) >> 4);
}

}  // namespace int4

// See base/codec.h. Two codes share a byte, the first in its lower half.
struct Int4Blocks {
  static constexpr Wire kWire = Wire::int4;
  static constexpr std::int64_t kBlock = 256, kHead = 2, kBits = 4;

  template <class T>
  ZERO_BOTH static void encode(const T* values, std::int64_t n, std::uint8_t* codes, std::uint8_t* head) {
    std::int32_t least = 0, most = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<std::int32_t>(widen(values[i]));
      most = std::max(most, bits);
      least = std::max(least, bits < 0 ? bits & 0x7fffffff : 0);
    }
    const bool finite = std::max(least, most) < 0x7f800000;
    const float step = finite ? int4::step_of(std::bit_cast<float>(least), std::bit_cast<float>(most)) : 0;
    const float inverse = int4::inverse_of(step);
    const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(inverse == 0 ? 0 : step) >> 16);
    put(finite ? bits : int4::kNoNumber, head);
    std::uint8_t each[kBlock + 1];
    for (std::int64_t i = 0; i < n; ++i) each[i] = int4::code_of(finite ? widen(values[i]) * inverse : 0);
    each[n] = 0;
    for (std::int64_t i = 0; i < (n + 1) / 2; ++i)
      codes[i] = static_cast<std::uint8_t>(each[2 * i] | each[2 * i + 1] << 4);
  }
  template <class T>
  ZERO_BOTH static void decode(const std::uint8_t* codes, const std::uint8_t* head, std::int64_t /*count*/,
                               std::int64_t first, std::int64_t n, T* values) {
    const auto step = std::bit_cast<float>((std::uint32_t{head[1]} << 8 | head[0]) << 16);
    const auto value = [&](std::int64_t at) {
      return int4::value_of(static_cast<std::uint8_t>(codes[at / 2] >> at % 2 * 4)) * step;
    };
    std::int64_t i = 0;
    for (; i < n && (first + i) % 2 != 0; ++i) float8::put(value(first + i), values[i]);
    const std::uint8_t* const pairs = codes + (first + i) / 2;
    const std::int64_t whole = (n - i) / 2;
    for (std::int64_t pair = 0; pair < whole; ++pair) {
      float8::put(int4::value_of(pairs[pair]) * step, values[i + 2 * pair]);
      float8::put(int4::value_of(static_cast<std::uint8_t>(pairs[pair] >> 4)) * step, values[i + 2 * pair + 1]);
    }
    for (i += 2 * whole; i < n; ++i) float8::put(value(first + i), values[i]);
  }

 private:
  ZERO_BOTH static void put(std::uint16_t bits, std::uint8_t* head) {
    head[0] = static_cast<std::uint8_t>(bits & 255);
    head[1] = static_cast<std::uint8_t>(bits >> 8);
  }
};

}  // namespace zero
