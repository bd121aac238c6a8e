// Whole numbers of eight or four bits in blocks of 256, each with a step in bf16, of either sign, by which the block's
// largest magnitude is the least code, -128 or -8: so it has all codes, and what is clipped is at most a step beyond
// the largest code, of values of the other sign. Rounded to the nearest, halves to even: by at most half a step, or a
// step where it is clipped, and what bf16 makes of the step, 2^-9 of a magnitude. What was decoded is encoded to the
// same codes. A block that is not finite becomes NaN, and a magnitude within 2^-9 of a type's largest number may become
// infinite. No torch.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/float8_blocks.h"
#include "base/half.h"
#include "base/targets.h"
#include "zero/plan.h"

namespace zero {

namespace full_range {

inline constexpr std::uint16_t kNoNumber = 0x7fc0;  // bf16

// Halves to even, of less than 2^22.
ZERO_BOTH inline float nearest(float value) {
  constexpr float shift = 12582912;  // 1.5 * 2^23
  return (value + shift) - shift;
}

// The step of codes from -most on, of a block whose largest magnitudes have either sign: a bf16, whose lower half is
// zero.
template <int most>
ZERO_BOTH inline float step_of(float negative, float positive) {
  const float scale = (positive > negative ? -positive : negative) * (1.0F / most);
  Bf16 narrow_scale;
  narrow(scale, narrow_scale);
  return widen(narrow_scale);
}

// Below the normal numbers a step has no inverse: such blocks are zero.
ZERO_BOTH inline float inverse_of(float step) {
  constexpr float least = 1.17549435e-38F;
  return step >= least || step <= -least ? 1 / step : 0;
}

template <int most>
ZERO_BOTH inline std::int8_t code_of(float scaled) {
  return static_cast<std::int8_t>(nearest(scaled < -most ? -most : scaled > most - 1 ? most - 1 : scaled));
}

// Of a code in the lower half of a byte.
ZERO_BOTH inline float value_of_half(std::uint8_t half) {
  return static_cast<float>(static_cast<std::int8_t>(half << 4) >> 4);
}

}  // namespace full_range

// See base/codec.h. Two codes of four bits share a byte, the first in its lower half.
template <int bits, Wire wire>
struct FullRangeBlocks {
  static_assert(bits == 8 || bits == 4);
  static constexpr Wire kWire = wire;
  static constexpr std::int64_t kBlock = 256, kHead = 2, kBits = bits;

  template <class T>
  ZERO_BOTH static void encode(const T* values, std::int64_t n, std::uint8_t* codes, std::uint8_t* head) {
    std::int32_t least = 0, most = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto value = std::bit_cast<std::int32_t>(widen(values[i]));
      most = std::max(most, value);
      least = std::max(least, value < 0 ? value & 0x7fffffff : 0);
    }
    const bool finite = std::max(least, most) < 0x7f800000;
    const float step = finite ? full_range::step_of<kMost>(std::bit_cast<float>(least), std::bit_cast<float>(most)) : 0;
    const float inverse = full_range::inverse_of(step);
    const auto kept = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(inverse == 0 ? 0 : step) >> 16);
    put(finite ? kept : full_range::kNoNumber, head);
    const auto code = [&](std::int64_t i) {
      return full_range::code_of<kMost>(finite ? widen(values[i]) * inverse : 0);
    };
    if constexpr (bits == 8) {
      for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(code(i));
    } else {
      std::uint8_t each[kBlock + 1];
      for (std::int64_t i = 0; i < n; ++i) each[i] = static_cast<std::uint8_t>(code(i)) & 15;
      each[n] = 0;
      for (std::int64_t i = 0; i < (n + 1) / 2; ++i)
        codes[i] = static_cast<std::uint8_t>(each[2 * i] | each[2 * i + 1] << 4);
    }
  }
  template <class T>
  ZERO_BOTH static void decode(const std::uint8_t* codes, const std::uint8_t* head, std::int64_t /*count*/,
                               std::int64_t first, std::int64_t n, T* values) {
    const auto step = std::bit_cast<float>((std::uint32_t{head[1]} << 8 | head[0]) << 16);
    if constexpr (bits == 8) {
      for (std::int64_t i = 0; i < n; ++i)
        float8::put(static_cast<float>(static_cast<std::int8_t>(codes[first + i])) * step, values[i]);
    } else {
      decode_halves(codes, step, first, n, values);
    }
  }

 private:
  static constexpr int kMost = 1 << (bits - 1);

  template <class T>
  ZERO_BOTH static void decode_halves(const std::uint8_t* codes, float step, std::int64_t first, std::int64_t n,
                                      T* values) {
    const auto value = [&](std::int64_t at) {
      return full_range::value_of_half(static_cast<std::uint8_t>(codes[at / 2] >> at % 2 * 4)) * step;
    };
    std::int64_t i = 0;
    for (; i < n && (first + i) % 2 != 0; ++i) float8::put(value(first + i), values[i]);
    const std::uint8_t* const pairs = codes + (first + i) / 2;
    const std::int64_t whole = (n - i) / 2;
    for (std::int64_t pair = 0; pair < whole; ++pair) {
      float8::put(full_range::value_of_half(pairs[pair]) * step, values[i + 2 * pair]);
      float8::put(full_range::value_of_half(static_cast<std::uint8_t>(pairs[pair] >> 4)) * step,
                  values[i + 2 * pair + 1]);
    }
    for (i += 2 * whole; i < n; ++i) float8::put(value(first + i), values[i]);
  }

  ZERO_BOTH static void put(std::uint16_t step, std::uint8_t* head) {
    head[0] = static_cast<std::uint8_t>(step & 255);
    head[1] = static_cast<std::uint8_t>(step >> 8);
  }
};

using Int8Blocks = FullRangeBlocks<8, Wire::int8>;
using Int4Blocks = FullRangeBlocks<4, Wire::int4>;

}  // namespace zero
