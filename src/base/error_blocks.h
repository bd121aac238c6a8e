// Eight bits with a sign in blocks of 128, each with a power of two, one byte (as MXINT8 of the OCP Microscaling
// formats, 2023, in longer blocks): each value is exact in bf16. Rounded to the nearest, halves to even; magnitudes
// above 127 * 2^121 round to infinity. What was decoded is encoded to the same codes, but for these. No torch.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/float8_blocks.h"
#include "base/full_range_blocks.h"
#include "base/targets.h"

namespace zero {

namespace error_blocks {

// The power of two by which `largest`, the bits of a magnitude, is divided to come into (63.5, 127].
ZERO_BOTH inline std::int32_t exponent_of(std::int32_t largest) {
  constexpr std::int32_t mantissa = (1 << 23) - 1, most = 63 << 17;
  const std::int32_t exponent = (largest >> 23) - float8::kExponentBias - 6 + ((largest & mantissa) > most ? 1 : 0);
  return std::clamp(exponent, -126, 126);
}

}  // namespace error_blocks

// As the codecs of base/codec.h are, without a wire: of finite values.
struct ErrorBlocks {
  static constexpr std::int64_t kBlock = 128, kHead = 1, kBits = 8;

  template <class T>
  ZERO_BOTH static void encode(const T* values, std::int64_t n, std::uint8_t* codes, std::uint8_t* head) {
    const std::int32_t largest = float8::largest_magnitude(values, n);
    const bool finite = largest < 0x7f800000;
    const std::int32_t exponent = error_blocks::exponent_of(largest);
    *head = finite ? static_cast<std::uint8_t>(exponent + float8::kExponentBias) : float8::kNoNumber;
    const float scale = finite ? float8::power(-exponent) : 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const float value = finite ? widen(values[i]) : 0;
      codes[i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(full_range::nearest(value * scale)));
    }
  }
  template <class T>
  ZERO_BOTH static void decode(const std::uint8_t* codes, const std::uint8_t* head, std::int64_t /*count*/,
                               std::int64_t first, std::int64_t n, T* values) {
    const float scale =
        *head == float8::kNoNumber ? std::bit_cast<float>(0x7fc00000) : float8::power(*head - float8::kExponentBias);
    for (std::int64_t i = 0; i < n; ++i)
      float8::put(static_cast<float>(static_cast<std::int8_t>(codes[first + i])) * scale, values[i]);
  }
};

}  // namespace zero
