// When what an activation plan stores and fetches begins to move, so that it is over when it is waited for: values are
// stored from when they are there, and fetched as late as the disk or link allows, as soon as there is room (the
// read-ahead of POET, Patil et al. 2022, along a run that is known).
#pragma once

#include <cstdint>
#include <vector>

#include "partition/activation_plan.h"
#include "partition/operator_trace.h"

namespace zero {

// A run through a micro-batch, execution by execution.
struct PlannedRun {
  struct Moved {
    int storage;
    std::int64_t from, until;  // executions: before which it may begin, and before which it is to be over
  };
  std::vector<std::int64_t> needs;   // bytes, of each execution
  std::vector<std::int64_t> begins;  // nanoseconds, without a wait
  std::vector<Moved> stored;         // since it has its values, until it is dropped
  std::vector<Moved> fetched;
};

// Sets the plan's moves, and adds to its peak, within `budget`, and to its nanoseconds what is waited.
// `nanoseconds_a_byte`: one way.
void overlap_moves(ActivationPlan& plan, PlannedRun run, const OperatorTrace& trace, std::int64_t budget,
                   double nanoseconds_a_byte);

}  // namespace zero
