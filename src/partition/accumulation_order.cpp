#include "partition/accumulation_order.h"

#include <bit>

#include "partition/routes.h"
#include "zero/plan.h"

namespace zero {

AccumulateStep accumulate_step(bool tree, int levels, int micro, int micro_batches) {
  const int top = levels - 1;
  if (!tree) return {micro == 0 ? std::vector<int>{} : std::vector<int>{top}, top};
  const auto waiting = static_cast<unsigned>(micro);
  const bool last = micro == micro_batches - 1;
  const int carries = last ? static_cast<int>(std::bit_width(waiting)) : std::countr_one(waiting);
  AccumulateStep fold{{}, last ? top : carries};
  for (int level = 0; level < carries; ++level)
    if ((waiting >> level) & 1u) fold.sources.push_back(level);
  return fold;
}

std::int64_t micro_batch_index(const Plan& plan, int ranks, int rank, int micro) {
  const int slot = micro % plan.accumulate();
  if (Routes(plan).reduces_each()) return std::int64_t{slot} * ranks + rank;
  return std::int64_t{rank} * plan.accumulate() + slot;
}

}  // namespace zero
