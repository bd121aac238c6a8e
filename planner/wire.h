// Where a step's traffic goes between hosts. No torch.
#pragma once

#include <cstdint>

#include "zero/plan.h"
#include "zero/traffic.h"

namespace planner {

// What a step's traffic becomes between `hosts` of `ranks / hosts` ranks, where collectives go over two levels: what
// crosses to a host does so once. Sums over the ranks of a host cross in the dtype in which gradients are kept, so that
// across and inside together can be more than the traffic, which is counted by the rule of one level.
struct WireSplit {
  std::int64_t inside = 0;
  std::int64_t across = 0;
};
WireSplit wire_split(const zero::Traffic& wire, const zero::Plan& plan, int ranks, int hosts);

}  // namespace planner
