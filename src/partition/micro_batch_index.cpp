#include "partition/micro_batch_index.h"

#include "partition/transitions.h"
#include "zero/plan.h"

namespace zero {

std::int64_t micro_batch_index(const Plan& plan, int ranks, int rank, int micro) {
  const int slot = micro % plan.accumulate();
  if (movement(plan).reduces_each) return std::int64_t{slot} * ranks + rank;
  return std::int64_t{rank} * plan.accumulate() + slot;
}

}  // namespace zero
