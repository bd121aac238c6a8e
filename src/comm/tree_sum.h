// The order of a sum across ranks: one binary tree over the index of the source. A tree of n sources
// is the perfect tree of the first p plus the tree of the rest, p being the largest power of two
// below n: pairs, pairs of pairs, left-overs joined from the small end.
#pragma once

#include <cstdint>
#include <span>

#include "zero/dtype.h"

namespace zero {

// out[i] = sum of sources[s][i], of type accumulation(dtype). `out` may be one of the sources when the
// types are equal. Throws ConfigError for uint8, which has no sum.
void tree_sum(std::span<const void* const> sources, Dtype dtype, void* out, std::int64_t count);

// The same sums rounded once to `dtype`, nearest even; NaN stays NaN. `out` may be one of the sources.
void tree_sum_rounded(std::span<const void* const> sources, Dtype dtype, void* out, std::int64_t count);

}  // namespace zero
