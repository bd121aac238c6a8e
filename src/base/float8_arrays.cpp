#include "base/float8_arrays.h"

#include <algorithm>
#include <bit>

#include "base/simd.h"

namespace zero {
namespace {

// As integers, magnitudes are in the order of their values, and NaN above all.
template <class T>
ZERO_MULTIVERSION std::int32_t largest_bits(const T* const values, const std::int64_t count) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<std::int32_t>(widen(values[i])) & 0x7fffffff);
  return largest;
}

template <class T, class Float8>
ZERO_MULTIVERSION void narrow_all(const T* const values, const float scale, Float8* const out,
                                  const std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) {
    Float8 code;
    narrow(widen(values[i]) * scale, code);
    out[i].bits = code.bits;
  }
}

template <class Float8>
ZERO_MULTIVERSION void widen_all(const Float8* const values, Bf16* const out, const std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i)
    out[i].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(widen(values[i])) >> 16);
}

}  // namespace

float largest_magnitude(const float* values, std::int64_t count) {
  return std::bit_cast<float>(largest_bits(values, count));
}
float largest_magnitude(const Bf16* values, std::int64_t count) {
  return std::bit_cast<float>(largest_bits(values, count));
}

void narrow(const float* values, float scale, E4m3* out, std::int64_t count) {
  narrow_all(values, scale, out, count);
}
void narrow(const Bf16* values, float scale, E4m3* out, std::int64_t count) {
  narrow_all(values, scale, out, count);
}
void narrow(const float* values, float scale, E5m2* out, std::int64_t count) {
  narrow_all(values, scale, out, count);
}
void narrow(const Bf16* values, float scale, E5m2* out, std::int64_t count) {
  narrow_all(values, scale, out, count);
}

void widen(const E4m3* values, Bf16* out, std::int64_t count) {
  widen_all(values, out, count);
}
void widen(const E5m2* values, Bf16* out, std::int64_t count) {
  widen_all(values, out, count);
}

}  // namespace zero
