// What an activation budget has done: of an engine's last complete micro-batch.
#pragma once

#include <cstdint>

namespace zero {

struct ActivationReport {
  std::int64_t budget_bytes = 0;     // 0: there is none, or it is a share and the first micro-batch is not over
  std::int64_t unlimited_bytes = 0;  // the largest sum that would be alive at once without a budget
  std::int64_t peak_bytes = 0;       // that was
  std::int64_t planned_bytes = 0;    // that the plan foretold; 0: it went by none
  std::int64_t operators = 0;
  std::int64_t recomputations = 0;  // operators that ran again
  std::int64_t moved_bytes = 0;     // to where they were stored, and back
  double recomputation_share = 0;   // foretold: their time, of that of all operators
  double planning_seconds = 0;      // of the last plan
};

}  // namespace zero
