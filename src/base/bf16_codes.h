// Values rounded to bf16, as codes of 16 bits: half of what fp32 takes, without blocks that values share. What is not
// finite stays so. No torch.
#pragma once

#include <bit>
#include <cstdint>

#include "base/float8_blocks.h"
#include "base/half.h"
#include "base/targets.h"
#include "zero/plan.h"

namespace zero {

// See base/codec.h. The lower byte first.
struct Bf16Codes {
  static constexpr Wire kWire = Wire::bf16_codes;
  static constexpr std::int64_t kBlock = 64, kHead = 0, kBits = 16;

  template <class T>
  ZERO_BOTH static void encode(const T* values, std::int64_t n, std::uint8_t* codes, std::uint8_t* /*head*/) {
    for (std::int64_t i = 0; i < n; ++i) {
      Bf16 rounded;
      narrow(widen(values[i]), rounded);
      const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(widen(rounded)) >> 16);
      codes[2 * i] = static_cast<std::uint8_t>(bits & 255);
      codes[2 * i + 1] = static_cast<std::uint8_t>(bits >> 8);
    }
  }
  template <class T>
  ZERO_BOTH static void decode(const std::uint8_t* codes, const std::uint8_t* /*head*/, std::int64_t /*count*/,
                               std::int64_t first, std::int64_t n, T* values) {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint8_t* const at = codes + 2 * (first + i);
      float8::put(std::bit_cast<float>((std::uint32_t{at[1]} << 8 | at[0]) << 16), values[i]);
    }
  }
};

}  // namespace zero
