// Whether a run finds the memory that it is going to need. No torch.
#pragma once

#include "cli/options/options.h"
#include "models/llama_config.h"
#include "planner/memory_limit.h"

namespace cli {

// Throws zero::Error where `here` of the `ranks` ranks, those of this host, need more than there is under the first of
// the options' plans: says what they need and what would fit. What is counted is what the run is certain to hold.
void check_room(const RunOptions& options, const models::LlamaConfig& model, int ranks, int here,
                const planner::Room& room);

}  // namespace cli
