// The sums over the micro-batches of one step. No torch.
#pragma once

#include <cstdint>
#include <span>

#include "partition/fold.h"
#include "zero/dtype.h"

namespace zero {

// Carries the fold out on `count` elements of one precision: sums are made in accumulation(dtype) and kept in `levels`,
// of type `kept`. `gradient` null: zeros. Level pointers are those of the range, not of the whole buffers.
void fold(const Fold& fold, std::span<void* const> levels, Dtype kept, const void* gradient, Dtype dtype,
          std::int64_t count);

}  // namespace zero
