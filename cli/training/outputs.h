// The files that a finished run or comparison writes.
#pragma once

#include "options.h"
#include "report.h"
#include "train.h"

namespace cli {

// Throws zero::Error, naming the path, when one of them cannot be written; leaves nothing behind.
void check_outputs(const RunOptions& options);
void write_outputs(const RunOptions& options, const Report& report);

}  // namespace cli
