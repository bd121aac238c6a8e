// What happens within a step, for the page and the trace.
#pragma once

#include "models/json.h"
#include "zero/memory_report.h"

namespace cli {

// {"owners", "samples", "phases", "activities"} of what the analyzer saw: seconds from when it was told what there is,
// bytes by owner.
models::Json timeline_of(const zero::MemoryReport& report);

}  // namespace cli
