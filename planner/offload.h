// Tiers as people write them, and those to choose from. No torch.
#pragma once

#include <string>
#include <vector>

#include "zero/plan.h"

namespace planner {

// The plan with states on the tiers that a text says: "optimizer=disk,gradient=disk", or a share of one,
// "optimizer=host:0.8"; empty: none. Throws
// zero::ConfigError for another text.
zero::Plan offloaded(zero::Plan plan, const std::string& text);
// What says it of this plan.
std::string offload_of(const zero::Plan& plan);

// The plan, which has everything on the device, with states on these tiers, in the order in which it is to be tried:
// first the optimizer, then gradients too, then parameters, each on the tiers in their order. Without those that cannot
// work on the mesh.
std::vector<zero::Plan> tier_choices(const zero::Plan& plan, const std::vector<zero::Tier>& tiers,
                                     const zero::MeshShape& mesh);

}  // namespace planner
