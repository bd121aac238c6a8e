#include "base/float8_blocks.h"

#include <algorithm>

#include "base/float8_block.h"
#include "base/simd.h"

namespace zero {
namespace {

template <class T>
ZERO_MULTIVERSION void encode(const T* const values, std::uint8_t* const out, const std::int64_t count) {
  std::uint8_t* const codes = out + blocks_bytes(count) - count;
  for (std::int64_t begin = 0; begin < count; begin += kWireBlock)
    float8::encode_block(values + begin, std::min(kWireBlock, count - begin), codes + begin, out[begin / kWireBlock]);
}

template <class T>
ZERO_MULTIVERSION void decode(const std::uint8_t* const in, T* const values, const std::int64_t count) {
  const std::uint8_t* const codes = in + blocks_bytes(count) - count;
  for (std::int64_t begin = 0; begin < count; begin += kWireBlock)
    float8::decode_block(codes + begin, in[begin / kWireBlock], values + begin, std::min(kWireBlock, count - begin));
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

void encode_blocks(const void* values, Dtype dtype, std::uint8_t* out, std::int64_t count) {
  switch (dtype) {
    case Dtype::bf16: return encode(static_cast<const Bf16*>(values), out, count);
    case Dtype::f16: return encode(static_cast<const Fp16*>(values), out, count);
    default: return encode(static_cast<const float*>(values), out, count);
  }
}
void decode_blocks(const std::uint8_t* in, void* values, Dtype dtype, std::int64_t count) {
  switch (dtype) {
    case Dtype::bf16: return decode(in, static_cast<Bf16*>(values), count);
    case Dtype::f16: return decode(in, static_cast<Fp16*>(values), count);
    default: return decode(in, static_cast<float*>(values), count);
  }
}

}  // namespace zero
