// E4M3 in blocks of 32, each with a power of two, one byte (the idea of the OCP Microscaling formats, 2023). Rounded to
// the nearest; a block that is not finite becomes NaN. No torch.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/float8.h"
#include "base/targets.h"
#include "zero/plan.h"

namespace zero {

namespace float8 {

inline constexpr std::int32_t kExponentBias = 127;
inline constexpr std::uint8_t kNoNumber = 255;

ZERO_BOTH inline void put(float value, float& out) {
  out = value;
}
template <class Narrow>
ZERO_BOTH inline void put(float value, Narrow& out) {
  narrow(value, out);
}

// The power of two by which `largest`, the bits of a magnitude, is divided to come into (224, 448].
ZERO_BOTH inline std::int32_t exponent_of(std::int32_t largest) {
  constexpr std::int32_t mantissa = (1 << 23) - 1, three_quarters = 3 << 21;
  const std::int32_t exponent = (largest >> 23) - kExponentBias - 8 + ((largest & mantissa) > three_quarters ? 1 : 0);
  return std::clamp(exponent, -126, 126);
}

// Its bits, of `n` values.
template <class T>
ZERO_BOTH inline std::int32_t largest_magnitude(const T* values, std::int64_t n) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i)
    largest = std::max(largest, std::bit_cast<std::int32_t>(widen(values[i])) & 0x7fffffff);
  return largest;
}

// Of `n` values, to as many codes and the byte of their scale.
template <class T>
ZERO_BOTH inline void encode_block(const T* values, std::int64_t n, std::uint8_t* codes, std::uint8_t& byte) {
  const std::int32_t largest = largest_magnitude(values, n);
  const bool finite = largest < 0x7f800000;
  const std::int32_t exponent = exponent_of(largest);
  byte = finite ? static_cast<std::uint8_t>(exponent + kExponentBias) : kNoNumber;
  const float scale = power(-exponent);
  for (std::int64_t i = 0; i < n; ++i) {
    E4m3 code;
    narrow(widen(values[i]) * scale, code);
    codes[i] = code.bits;
  }
}

template <class T>
ZERO_BOTH inline void decode_block(const std::uint8_t* codes, std::uint8_t byte, T* values, std::int64_t n) {
  const float scale = byte == kNoNumber ? std::bit_cast<float>(0x7fc00000) : power(byte - kExponentBias);
  for (std::int64_t i = 0; i < n; ++i) put(widen(E4m3{codes[i]}) * scale, values[i]);
}

}  // namespace float8

// See base/codec.h.
struct Float8Blocks {
  static constexpr Wire kWire = Wire::fp8;
  static constexpr std::int64_t kBlock = 32, kHead = 1, kBits = 8;

  template <class T>
  ZERO_BOTH static void encode(const T* values, std::int64_t n, std::uint8_t* codes, std::uint8_t* head) {
    float8::encode_block(values, n, codes, *head);
  }
  template <class T>
  ZERO_BOTH static void decode(const std::uint8_t* codes, const std::uint8_t* head, std::int64_t /*count*/,
                               std::int64_t first, std::int64_t n, T* values) {
    float8::decode_block(codes + first, *head, values, n);
  }
};

}  // namespace zero
