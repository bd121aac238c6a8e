// What coding rounds off an array is kept, in ErrorBlocks, and is part of what is coded of it next: so it is late, and,
// but for what ErrorBlocks round off it, not lost (LoCo, arXiv 2407.04480, of which this is the case without an average
// over steps). An array of such errors begins as zeros, all bytes of it. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/codec.h"
#include "base/error_blocks.h"
#include "base/half.h"
#include "base/targets.h"
#include "zero/plan.h"

namespace zero::feedback {

// So many values are coded together: whole blocks of both.
template <class Codec>
inline constexpr std::int64_t kSpan = std::max(Codec::kBlock, ErrorBlocks::kBlock);

// Where codes of an array lie, heads first.
struct Coded {
  std::uint8_t *heads, *codes;

  template <class Codec>
  ZERO_BOTH Coded from(std::int64_t value) const {
    return {heads + value / Codec::kBlock * Codec::kHead, codes + value * Codec::kBits / 8};
  }
};

template <class Codec>
ZERO_BOTH inline Coded coded(std::uint8_t* array, std::int64_t count) {
  return {array, array + bytes_of_heads<Codec>(count)};
}

// Tells of `n` values block by block.
template <class Codec, class Use>
ZERO_BOTH inline void each_block(std::int64_t n, const Coded& of, const Use& use) {
  for (std::int64_t begin = 0; begin < n; begin += Codec::kBlock)
    use(begin, std::min(std::int64_t{Codec::kBlock}, n - begin), of.template from<Codec>(begin));
}

// Of a span's `n` values with their errors, which become what is rounded off now; of what is not finite there is none.
template <class Codec, class T>
ZERO_BOTH inline void encode(const T* values, std::int64_t n, const Coded& to, const Coded& errors) {
  float sum[kSpan<Codec>], decoded[kSpan<Codec>];
  each_block<ErrorBlocks>(n, errors, [&](std::int64_t begin, std::int64_t count, const Coded& at) {
    ErrorBlocks::decode(at.codes, at.heads, count, 0, count, sum + begin);
  });
  for (std::int64_t i = 0; i < n; ++i) sum[i] += widen(values[i]);
  each_block<Codec>(n, to, [&](std::int64_t begin, std::int64_t count, const Coded& at) {
    Codec::encode(sum + begin, count, at.codes, at.heads);
    Codec::decode(at.codes, at.heads, count, 0, count, decoded + begin);
  });
  for (std::int64_t i = 0; i < n; ++i) {
    const float left = sum[i] - decoded[i];
    sum[i] = left - left == 0 ? left : 0;
  }
  each_block<ErrorBlocks>(n, errors, [&](std::int64_t begin, std::int64_t count, const Coded& at) {
    ErrorBlocks::encode(sum + begin, count, at.codes, at.heads);
  });
}

}  // namespace zero::feedback
