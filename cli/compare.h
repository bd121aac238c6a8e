// What a comparison of plans concludes. No torch.
#pragma once

#include <iosfwd>
#include <vector>

#include "options.h"
#include "report.h"

namespace cli {

// Plans with the same number promise the same bits: all where no two reductions of a step could be made in
// another order, else those that reduce at the same times.
std::vector<int> promises(const RunOptions& options, int ranks);

// Prints the tables and "losses identical: yes" or "no". Returns 0, or 1 where a promise was not kept or a
// measured size is not the predicted one.
int conclude(std::ostream& out, const RunOptions& options, const Report& report);

}  // namespace cli
