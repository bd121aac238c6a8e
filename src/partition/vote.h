// Sizes of the two small records that the ranks exchange besides tensors.
#pragma once

#include <cstdint>

#include "base/exact_sum.h"

namespace zero {

inline constexpr int kNormLimbs = ExactSum::kLimbs;

// A rank's vote on one step: the exact sum of the squares of its gradients as fixed-point limbs, the
// number of blocks that were not finite, the loss of each of its micro-batches, and one bit a parameter
// that received a gradient. All ranks' votes are exchanged by one all-gather.
constexpr std::int64_t vote_bytes(std::int64_t parameters, int accumulate) {
  return 8 * (kNormLimbs + 1) + 8 * std::int64_t{accumulate} + 8 * ((parameters + 63) / 64);
}

// What a rank announces, by one all-gather, before each exchange: which operation it is about to make.
inline constexpr std::int64_t kAnnouncementBytes = 32;

}  // namespace zero
