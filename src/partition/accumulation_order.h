// The order of a sum over the micro-batches of one step, which of them is whose, and what ranks have of the sum while
// it is made. No torch.
//
// The default is one running sum, and a tree over the ranks. A reproducible plan has one tree over all micro-batches of
// all ranks, by their global index (base/sum_tree.h): a rank keeps the sums of the largest nodes that cover what it has
// had, one behind the other, and joins them as others come to them.
#pragma once

#include <cstdint>
#include <vector>

#include "zero/communicator.h"

namespace zero {

class Plan;

// What to do with a gradient that comes: target = ((gradient + ...)), every source being the left operand in turn. Both
// count the sums that are held, from the first; the result of the step is the first.
struct AccumulateStep {
  std::vector<int> sources;
  int target = 0;
  bool operator==(const AccumulateStep&) const = default;
};

// Of the plan as it is on its mesh, which is to live as long.
class AccumulationOrder {
 public:
  AccumulationOrder(const Plan& plan, int ranks, int rank);

  // What a reduction of micro-batch `micro`, counted from 0, is a sum of; or, where the plan adds up first, of all.
  Leaves reduced(int micro) const;
  // What becomes of what micro-batch `micro` brings: its gradient, or each sum that comes of its reduction. A running
  // sum takes any number of micro-batches, a tree exactly the planned one.
  std::vector<AccumulateStep> steps(int micro) const;
  // Sums that this rank has at once, at most; and behind its last micro-batch.
  int levels() const;
  int left() const;
  // Whether reductions of all micro-batches are alike.
  bool alike() const;

 private:
  bool tree() const;
  std::int64_t all() const;
  // Micro-batches by their global index: the first that this rank adds up, and those behind the first `micro` of them.
  std::int64_t begin() const;
  std::int64_t end(int micro) const;

  const Plan& plan_;
  int ranks_, rank_;
  bool reduces_each_;
};

// Sums of a gradient in a step, of the plan as it is on its mesh.
struct SumsOfStep {
  int levels = 1;           // on a rank at once, of the rank that has most; see accumulation_levels()
  int left = 1;             // and behind its last micro-batch
  int least = 0;            // a rank that has least left then, and so receives most
  std::int64_t added = 0;   // gradients, or sums over ranks, that come
  std::int64_t joined = 0;  // held ones that are read for it, by a rank with most left
};
SumsOfStep sums_of_step(const Plan& plan, int ranks);

// The global index, within one step, of micro-batch `micro` on `rank`: consecutive where the plan, as it is on its
// mesh, adds first, so that sums over micro-batches and over ranks are nodes of one tree (design: order of a sum).
std::int64_t micro_batch_index(const Plan& plan, int ranks, int rank, int micro);

}  // namespace zero
