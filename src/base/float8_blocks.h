// Arrays in E4M3 by blocks, each with a power of two, one byte (the idea of the OCP Microscaling formats, 2023): the
// scales of all blocks first, then the codes. Rounded to the nearest; a block that is not finite becomes NaN. No torch.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "zero/dtype.h"

namespace zero {

inline constexpr std::int64_t kWireBlock = 32;

constexpr std::int64_t blocks_bytes(std::int64_t count) {
  return (count + kWireBlock - 1) / kWireBlock + count;
}

void encode_blocks(const float* values, std::uint8_t* out, std::int64_t count);
void encode_blocks(const Bf16* values, std::uint8_t* out, std::int64_t count);
void encode_blocks(const Fp16* values, std::uint8_t* out, std::int64_t count);
void decode_blocks(const std::uint8_t* in, float* values, std::int64_t count);
void decode_blocks(const std::uint8_t* in, Bf16* values, std::int64_t count);
void decode_blocks(const std::uint8_t* in, Fp16* values, std::int64_t count);

// Of f32, bf16 or f16.
void encode_blocks(const void* values, Dtype dtype, std::uint8_t* out, std::int64_t count);
void decode_blocks(const std::uint8_t* in, void* values, Dtype dtype, std::int64_t count);

}  // namespace zero
