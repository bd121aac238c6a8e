// Int4Blocks of values that were mixed first: 32 at a time by the Hadamard matrix, which is its own inverse but for a
// factor. What one large value among small ones would cost all of a block, its 32 then share; of a block's normal
// numbers the error is as without. SDP4Bit (arXiv 2410.15526), section 3.3. What is mixed stands a 32nd of a block
// apart; the rest of a block that 32 does not divide is only brought to the size of what was mixed. No torch.
#pragma once

#include <cstdint>
#include <limits>

#include "base/full_range_blocks.h"

namespace zero {

namespace hadamard {

inline constexpr std::int64_t kOrder = 32;
inline constexpr float kRoot = 5.656854249492380F;  // of 32

// Of `lanes` columns of 32 rows, whose entry i stands at i * lanes.
ZERO_BOTH inline void mix(float* values, std::int64_t lanes) {
  for (std::int64_t half = lanes; half < kOrder * lanes; half *= 2)
    for (std::int64_t begin = 0; begin < kOrder * lanes; begin += 2 * half)
      for (std::int64_t i = begin; i < begin + half; ++i) {
        const float a = values[i], b = values[i + half];
        values[i] = a + b;
        values[i + half] = a - b;
      }
}

}  // namespace hadamard

// See base/codec.h.
struct Int4HadamardBlocks {
  static constexpr Wire kWire = Wire::int4_hadamard;
  static constexpr std::int64_t kBlock = Int4Blocks::kBlock, kHead = Int4Blocks::kHead, kBits = Int4Blocks::kBits;

  // Divided by 32 first, so that finite values stay finite.
  template <class T>
  ZERO_BOTH static void encode(const T* values, std::int64_t n, std::uint8_t* codes, std::uint8_t* head) {
    constexpr float share = 1.0F / hadamard::kOrder;
    const std::int64_t lanes = n / hadamard::kOrder, mixed = lanes * hadamard::kOrder;
    float each[kBlock];
    for (std::int64_t i = 0; i < mixed; ++i) each[i] = widen(values[i]) * share;
    for (std::int64_t i = mixed; i < n; ++i) each[i] = widen(values[i]) / hadamard::kRoot;
    hadamard::mix(each, lanes);
    Int4Blocks::encode(each, n, codes, head);
  }
  template <class T>
  ZERO_BOTH static void decode(const std::uint8_t* codes, const std::uint8_t* head, std::int64_t count,
                               std::int64_t first, std::int64_t n, T* values) {
    if (n == count) return decode(codes, head, count, values);
    for (std::int64_t i = 0; i < n; ++i) float8::put(value(codes, head, count, first + i), values[i]);
  }

 private:
  template <class T>
  ZERO_BOTH static void decode(const std::uint8_t* codes, const std::uint8_t* head, std::int64_t count, T* values) {
    float each[kBlock];
    Int4Blocks::decode(codes, head, count, 0, count, each);
    const std::int64_t lanes = count / hadamard::kOrder;
    hadamard::mix(each, lanes);
    for (std::int64_t i = lanes * hadamard::kOrder; i < count; ++i) each[i] *= hadamard::kRoot;
    for (std::int64_t i = 0; i < count; ++i) float8::put(in_one_form(each[i]), values[i]);
  }

  // What is not a number, and may have come of infinities, has the same bits wherever it is computed.
  ZERO_BOTH static float in_one_form(float value) {
    return value != value ? std::numeric_limits<float>::quiet_NaN() : value;
  }

  // One, from the column that it is in: the same sums.
  ZERO_BOTH static float value(const std::uint8_t* codes, const std::uint8_t* head, std::int64_t count,
                               std::int64_t at) {
    const std::int64_t lanes = count / hadamard::kOrder;
    float column[hadamard::kOrder];
    if (at >= lanes * hadamard::kOrder) {
      Int4Blocks::decode(codes, head, count, at, 1, column);
      return in_one_form(column[0] * hadamard::kRoot);
    }
    for (std::int64_t i = 0; i < hadamard::kOrder; ++i)
      Int4Blocks::decode(codes, head, count, i * lanes + at % lanes, 1, column + i);
    hadamard::mix(column, 1);
    return in_one_form(column[at / lanes]);
  }
};

}  // namespace zero
