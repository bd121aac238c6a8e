// The 16-bit floating-point formats and their conversions: exact to fp32, rounded to nearest even from
// fp32 (NaN stays NaN). Written so that loops over them vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace zero {

struct Bf16 {
  std::uint16_t bits;
};
using Fp16 = _Float16;

inline float widen(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
inline float widen(Fp16 value) {
  return static_cast<float>(value);
}
inline float widen(float value) {
  return value;
}
inline double widen(double value) {
  return value;
}

inline void narrow(float value, Bf16& out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40;
  out.bits = static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
}
inline void narrow(float value, Fp16& out) {
  out = static_cast<Fp16>(value);
}

}  // namespace zero
