// zero train --plan FILE: a setting that zero plan chose.
#pragma once

#include "cli/options/options.h"

namespace cli {

// Where --plan names no preset it names a plan file, whose setting the options take. Throws UsageError for a name that
// is neither, and where an option that was given says something else than the file.
void take_plan_file(const CLI::App& command, RunOptions& options);

}  // namespace cli
