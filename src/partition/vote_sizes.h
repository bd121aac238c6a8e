// Sizes of the two small records that the ranks exchange besides tensors.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/exact_sum.h"

namespace zero {

inline constexpr int kNormLimbs = ExactSum::kLimbs;

// A rank's vote on one step: the exact sum of the squares of its gradients as fixed-point limbs, a word that says
// whether any was not finite, what the program tells and by what learning rates are compared, the loss of each of its
// micro-batches, and one bit a parameter that received a gradient; under `float8` the largest input and gradient of
// each parameter's products. All ranks' votes are exchanged by one all-gather.
constexpr std::int64_t vote_bytes(std::int64_t parameters, int accumulate, bool float8) {
  return 8 * (kNormLimbs + 1) + 8 * std::int64_t{accumulate} + 8 * ((parameters + 63) / 64) +
         (float8 ? 16 * parameters : 0);
}

// The larger of two magnitudes, NaN if one is.
inline void note_largest(double& largest, double value) {
  if (!std::isnan(largest) && !(value <= largest)) largest = value;
}

// What a rank announces, by one all-gather, before each exchange: which operation it is about to make.
inline constexpr std::int64_t kAnnouncementBytes = 32;

}  // namespace zero
