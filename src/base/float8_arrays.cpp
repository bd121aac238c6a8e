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

// use(pointer) of values in fp32 or bf16.
template <class Use>
auto with_values(const void* values, Dtype dtype, const Use& use) {
  if (dtype == Dtype::f32) return use(static_cast<const float*>(values));
  return use(static_cast<const Bf16*>(values));
}

void grow(float& to, std::int32_t bits) {
  to = std::bit_cast<float>(std::max(std::bit_cast<std::int32_t>(to), bits));
}

}  // namespace

void find_largest(const void* values, Dtype dtype, std::int64_t count, float* largest, float* noted) {
  const std::int32_t bits =
      with_values(values, dtype, [count](const auto* typed) { return largest_bits(typed, count); });
  grow(*largest, bits);
  if (noted != nullptr) grow(*noted, bits);
}

void to_float8(Float8Format format, const void* values, Dtype dtype, std::int64_t count, float given,
               Float8Scale* scale, std::uint8_t* codes) {
  scale->scale = float8::scale_of(float8::largest_of(format), scale->largest, given);
  scale->inverse = 1 / scale->scale;
  with_values(values, dtype, [&](const auto* typed) {
    if (format == Float8Format::e4m3)
      narrow_all(typed, scale->scale, reinterpret_cast<E4m3*>(codes), count);
    else
      narrow_all(typed, scale->scale, reinterpret_cast<E5m2*>(codes), count);
  });
}

void from_float8(Float8Format format, const std::uint8_t* codes, Bf16* values, std::int64_t count) {
  if (format == Float8Format::e4m3)
    widen_all(reinterpret_cast<const E4m3*>(codes), values, count);
  else
    widen_all(reinterpret_cast<const E5m2*>(codes), values, count);
}

}  // namespace zero
