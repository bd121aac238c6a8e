// What a comparison of plans or of optimizers consists of and concludes. No torch.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "cli/report/report.h"

namespace cli {

// One run of a comparison.
struct Contender {
  std::string label;
  RunOptions options;  // of its one plan, optimizer and precision
};
std::vector<Contender> contenders(const RunOptions& options);

// Prints the tables and, of plans, "losses identical: yes" or "no". Returns 0, or 1 where a promise was not kept, a
// size is not the predicted one, or a run skipped every step.
int conclude(std::ostream& out, const RunOptions& options, const Report& report);

}  // namespace cli
