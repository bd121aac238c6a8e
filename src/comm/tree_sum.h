// The order of a sum across ranks: one binary tree over the index of the source (base/sum_tree.h). A tree of n sources
// is the perfect tree of the first p plus the tree of the rest, p being the largest power of two below n.
#pragma once

#include <cstdint>
#include <span>

#include "base/sum_tree.h"
#include "zero/dtype.h"

namespace zero {

// out[i] = sum of sources[s][i], of type accumulation(dtype). `out` may be one of the sources when the
// types are equal. Throws ConfigError for uint8, which has no sum.
void tree_sum(std::span<const void* const> sources, Dtype dtype, void* out, std::int64_t count);

// The same sums rounded once to `dtype`, nearest even; NaN stays NaN. `out` may be one of the sources.
void tree_sum_rounded(std::span<const void* const> sources, Dtype dtype, void* out, std::int64_t count);

// All that comes of a sum: `sources` by its parts. The sums, of type accumulation(dtype), are `pitch` elements apart;
// each may be one of its sources when the types are equal.
void group_sum(const SumParts& sum, std::span<const void* const> sources, Dtype dtype, void* out, std::int64_t pitch,
               std::int64_t count);

}  // namespace zero
