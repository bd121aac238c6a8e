// How a plan whose activations are too large fits: as many tokens a step in more and smaller micro-batches, or an
// activation budget. No torch.
#pragma once

#include <optional>
#include <vector>

#include "planner/price.h"

namespace planner {

// The faster of the largest micro-batches that fit whole and those that were asked for within a budget; where neither
// fits, the smallest within one. Of budgets the largest that fits: 75, 50 or 25 percent, or the least. None where
// nothing fits.
std::optional<Cost> with_less_activations(const Request& request, const zero::Plan& plan);

// The same of all the plans where none fits and the request lets it be chosen. Tiers that were chosen stay.
void choose_activations(const Request& request, std::vector<Cost>& costs);

}  // namespace planner
