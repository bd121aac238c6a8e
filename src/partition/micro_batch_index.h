// Which of a step's micro-batches is whose. No torch.
#pragma once

#include <cstdint>

namespace zero {

class Plan;

// The global index, within one step, of micro-batch `micro` on `rank`: consecutive where the plan, as it is on its
// mesh, adds first, so that sums over micro-batches and over ranks are subtrees of one tree (design: order of a sum).
std::int64_t micro_batch_index(const Plan& plan, int ranks, int rank, int micro);

}  // namespace zero
