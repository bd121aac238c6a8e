// What a step moves between the device and other tiers. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/repeated.h"
#include "zero/layout.h"
#include "zero/optimizer.h"
#include "zero/plan.h"
#include "zero/tier_traffic.h"

namespace zero {

// In a step in which every trainable parameter receives a gradient and none overflows, of a plan as it is on the
// layout's mesh: each figure that of the rank that moves most. But for parameters that are brought for their use, which
// follow from the order of use. What goes over the link between a device and its host is that of the host's tier.
TierMoves moved_between_tiers(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules,
                              const Repeats& repeats, bool on_device);

// Likewise, of a parameter that has so many bytes on the plan's tier, each time it is brought.
TierTraffic moved_for_use(const Plan& plan, std::int64_t bytes, bool on_device);

}  // namespace zero
