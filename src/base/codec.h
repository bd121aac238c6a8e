// Codecs: how values travel in fewer bytes than they are stored in. A codec cuts an array into blocks, each of which
// has a head of its own (a scale, say): the heads of all blocks first, then the codes. It is a type, and a line of
// Codecs:
//
//   kWire                    what a plan calls it
//   kBlock                   values of a block
//   kHead, kBits             bytes of its head, if any; bits of a value's code, whose block ends a byte
//   kDiffers                 if true: what is coded is the difference from what the receiver has, and added to it
//   encode(values, n, codes, head)
//                            of a block's first n values
//   decode(codes, head, count, first, n, values)
//                            of a block of `count` values, to n of them from `first` on
//
// both for the host and for grids, of values of f32, bf16 and f16. No torch.
#pragma once

#include <cstdint>
#include <tuple>

#include "base/bf16_codes.h"
#include "base/float8_blocks.h"
#include "base/full_range_blocks.h"
#include "base/int4_hadamard_blocks.h"
#include "zero/plan.h"

namespace zero {

// Differences, coded as values are.
template <class Codec, Wire wire>
struct Differences : Codec {
  static constexpr Wire kWire = wire;
  static constexpr bool kDiffers = true;
};

using Codecs = std::tuple<Bf16Codes, Float8Blocks, Int8Blocks, Int4Blocks, Int4HadamardBlocks,
                          Differences<Int4Blocks, Wire::int4_differences>>;

// Calls use(codec), a value of the wire's type, where it has one: whether it has.
template <class Use>
constexpr bool with_codec(Wire wire, const Use& use) {
  return std::apply(
      [&](auto... codec) { return ((decltype(codec)::kWire == wire && (static_cast<void>(use(codec)), true)) || ...); },
      Codecs());
}

constexpr bool has_codec(Wire wire) {
  return with_codec(wire, [](auto) {});
}

constexpr bool differs(Wire wire) {
  bool differ = false;
  with_codec(wire, [&]<class Codec>(Codec) {
    differ = requires {
      Codec::kDiffers;
    };
  });
  return differ;
}

// Values that are coded together; 1 where there is no codec.
constexpr std::int64_t block_of(Wire wire) {
  std::int64_t block = 1;
  with_codec(wire, [&](auto codec) { block = decltype(codec)::kBlock; });
  return block;
}

// Of a value's code; 0 where there is no codec.
constexpr int bits_of(Wire wire) {
  int bits = 0;
  with_codec(wire, [&](auto codec) { bits = decltype(codec)::kBits; });
  return bits;
}

template <class Codec>
constexpr std::int64_t bytes_of_heads(std::int64_t count) {
  return (count + Codec::kBlock - 1) / Codec::kBlock * Codec::kHead;
}

// Of heads and codes.
template <class Codec>
constexpr std::int64_t bytes_of_codes(std::int64_t count) {
  return bytes_of_heads<Codec>(count) + (count * Codec::kBits + 7) / 8;
}

// 0 where there is no codec.
constexpr std::int64_t bytes_of_codes(Wire wire, std::int64_t count) {
  std::int64_t bytes = 0;
  with_codec(wire, [&](auto codec) { bytes = bytes_of_codes<decltype(codec)>(count); });
  return bytes;
}

}  // namespace zero
