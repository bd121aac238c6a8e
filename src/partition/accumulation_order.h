// The order of a sum over the micro-batches of one step, and which of them is whose. No torch.
//
// The default is one running sum. `tree` is a binary counter: the sum of 2^l consecutive micro-batches
// waits in level l, and at the last micro-batch the levels are joined from the small end; so the sum
// over micro-batches and the sum over ranks (tree_sum) are subtrees of one tree.
#pragma once

#include <cstdint>
#include <vector>

namespace zero {

class Plan;

// What to do with the gradient of one micro-batch: target = ((gradient + ...)), every source being
// the left operand in turn. Levels count from 0; the result of the step ends in the highest.
struct AccumulateStep {
  std::vector<int> sources;
  int target = 0;
};

// `micro` of `micro_batches`, counted from 0. A running sum takes any number of micro-batches; a tree
// exactly the planned one. `levels`: accumulation_levels(plan).
AccumulateStep accumulate_step(bool tree, int levels, int micro, int micro_batches);

// The global index, within one step, of micro-batch `micro` on `rank`: consecutive where the plan, as it is on its
// mesh, adds first, so that sums over micro-batches and over ranks are subtrees of one tree (design: order of a sum).
std::int64_t micro_batch_index(const Plan& plan, int ranks, int rank, int micro);

}  // namespace zero
