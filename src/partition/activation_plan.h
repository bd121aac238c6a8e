// Which activations of a micro-batch lose their memory when, so that all that is there together stays within a budget:
// found by going through the micro-batch's trace again and again, each time by another rule of what goes first, and
// keeping the run that takes the least time. What making an activation again takes of memory is part of each run.
//
// A plan by knapsack over what is saved at the end of forward, as compilers make them, knows nothing of that, and its
// peak may rise when its budget falls.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "partition/operator_trace.h"
#include "partition/stored_way.h"

namespace zero {

struct ActivationPlan {
  struct Drop {
    int storage;
    bool stores;
  };
  std::vector<std::vector<Drop>> drops;  // before each execution of an operator, those again and fetches included
  struct Move {
    int storage;
    bool fetches;  // else it is stored
  };
  std::vector<std::vector<Move>> moves;  // what begins before each execution, to be over when it is waited for
  std::vector<std::int64_t> begins;      // executions before each operator, and before what is brought for it
  std::vector<char> needed;              // operators that may be run again
  std::int64_t peak = 0;                 // bytes
  std::int64_t nanoseconds = 0;          // of what is run again
  std::int64_t executions = 0, recomputations = 0;
  std::int64_t gathers = 0;  // of units, more than without
  std::int64_t moved = 0;    // bytes, to where they are stored and back
};

// What the micro-batch holds at most if nothing is dropped, in bytes.
std::int64_t unlimited_peak(const OperatorTrace& trace);

// The operator that alone needs most: arguments, results and what is beside them, in bytes.
struct LargestNeed {
  int op = -1;
  std::int64_t bytes = 0;
};
LargestNeed largest_need(const OperatorTrace& trace);

// Operators that are alike take equally long from here on, the median: clocks are noisy.
void level_times(OperatorTrace& trace);

// Within `budget` bytes; none where no rule meets it. At most one second for 2,500 operators. `seed`: for tests, of
// what goes first by chance.
std::optional<ActivationPlan> activation_plan(const OperatorTrace& trace, std::int64_t budget, std::uint32_t seed = 0,
                                              StoredWay way = {});
// The least budget for which there is one, to a hundredth of what is unlimited.
std::int64_t least_budget(const OperatorTrace& trace, StoredWay way = {});

}  // namespace zero
