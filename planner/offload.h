// Tiers to choose from. No torch.
#pragma once

#include <vector>

#include "zero/plan.h"

namespace planner {

// The plan, which has everything on the device, with states on these tiers, in the order in which it is to be tried:
// first the optimizer, then gradients too, then parameters, each on the tiers in their order. Without those that cannot
// work on the mesh.
std::vector<zero::Plan> tier_choices(const zero::Plan& plan, const std::vector<zero::Tier>& tiers,
                                     const zero::MeshShape& mesh);

}  // namespace planner
