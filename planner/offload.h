// Tiers as people write them. No torch.
#pragma once

#include <string>

#include "zero/plan.h"

namespace planner {

// The plan with states on the tiers that a text says: "optimizer=disk,gradient=disk"; empty: none. Throws
// zero::ConfigError for another text.
zero::Plan offloaded(zero::Plan plan, const std::string& text);

}  // namespace planner
