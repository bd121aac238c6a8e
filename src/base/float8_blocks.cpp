#include "base/float8_blocks.h"

#include <algorithm>
#include <bit>

#include "base/float8.h"
#include "base/simd.h"

namespace zero {
namespace {

constexpr std::int32_t kBias = 127;
constexpr std::uint8_t kNoNumber = 255;

void put(float value, float& out) {
  out = value;
}
void put(float value, Bf16& out) {
  narrow(value, out);
}
void put(float value, Fp16& out) {
  narrow(value, out);
}

// The power of two by which `largest`, the bits of a magnitude, is divided to come into (224, 448].
std::int32_t exponent_of(std::int32_t largest) {
  constexpr std::int32_t mantissa = (1 << 23) - 1, three_quarters = 3 << 21;
  const std::int32_t exponent = (largest >> 23) - kBias - 8 + ((largest & mantissa) > three_quarters ? 1 : 0);
  return std::clamp(exponent, -126, 126);
}

template <class T>
ZERO_MULTIVERSION void encode(const T* const values, std::uint8_t* const out, const std::int64_t count) {
  std::uint8_t* const codes = out + blocks_bytes(count) - count;
  for (std::int64_t begin = 0; begin < count; begin += kWireBlock) {
    const std::int64_t end = std::min(begin + kWireBlock, count);
    std::int32_t largest = 0;
    for (std::int64_t i = begin; i < end; ++i)
      largest = std::max(largest, std::bit_cast<std::int32_t>(widen(values[i])) & 0x7fffffff);
    const bool finite = largest < 0x7f800000;
    const std::int32_t exponent = exponent_of(largest);
    out[begin / kWireBlock] = finite ? static_cast<std::uint8_t>(exponent + kBias) : kNoNumber;
    const float scale = float8::power(-exponent);
    for (std::int64_t i = begin; i < end; ++i) {
      E4m3 code;
      narrow(widen(values[i]) * scale, code);
      codes[i] = code.bits;
    }
  }
}

template <class T>
ZERO_MULTIVERSION void decode(const std::uint8_t* const in, T* const values, const std::int64_t count) {
  const std::uint8_t* const codes = in + blocks_bytes(count) - count;
  for (std::int64_t begin = 0; begin < count; begin += kWireBlock) {
    const std::int64_t end = std::min(begin + kWireBlock, count);
    const std::uint8_t byte = in[begin / kWireBlock];
    const float scale = byte == kNoNumber ? std::bit_cast<float>(0x7fc00000) : float8::power(byte - kBias);
    for (std::int64_t i = begin; i < end; ++i) put(widen(E4m3{codes[i]}) * scale, values[i]);
  }
}

}  // namespace

void encode_blocks(const float* values, std::uint8_t* out, std::int64_t count) {
  encode(values, out, count);
}
void encode_blocks(const Bf16* values, std::uint8_t* out, std::int64_t count) {
  encode(values, out, count);
}
void encode_blocks(const Fp16* values, std::uint8_t* out, std::int64_t count) {
  encode(values, out, count);
}
void decode_blocks(const std::uint8_t* in, float* values, std::int64_t count) {
  decode(in, values, count);
}
void decode_blocks(const std::uint8_t* in, Bf16* values, std::int64_t count) {
  decode(in, values, count);
}
void decode_blocks(const std::uint8_t* in, Fp16* values, std::int64_t count) {
  decode(in, values, count);
}

}  // namespace zero
