// The files that a finished run or comparison writes.
#pragma once

#include <iosfwd>

#include "cli/options/options.h"
#include "cli/report/report.h"
#include "cli/training/train.h"

namespace cli {

// Throws zero::Error, naming the path, when one of them cannot be written.
void write_outputs(const RunOptions& options, const Report& report);

// For people: standard output, or standard error where a file goes to standard output.
std::ostream& text_of(const RunOptions& options);

// Says so, where a run updated nothing.
bool says_all_skipped(const RunResult& run);

}  // namespace cli
