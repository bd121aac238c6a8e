// What ranks that were started apart have to have in common.
#pragma once

#include "cli/options/options.h"
#include "cli/training/work.h"
#include "zero/world.h"

namespace cli {

// Throws UsageError on every rank where options that change the run, the model or the tokens of the data are not the
// same on all, naming the first that differs and what each rank has. Collective.
void require_common(const zero::World& world, const RunOptions& options, const Work& work);

}  // namespace cli
