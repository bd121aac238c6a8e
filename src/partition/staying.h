// Which units keep on the device what the optimizer keeps of them, under a plan that offloads a share only. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/repeated.h"
#include "zero/layout.h"
#include "zero/optimizer.h"
#include "zero/plan.h"

namespace zero {

// By unit of the layout: so many of its occurrences, the first ones, keep it there, and their gradients with it. In the
// order of the layout each that has room in what the share leaves, and keeps anything at all; the same on every rank.
std::vector<std::int64_t> staying(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules,
                                  const Repeats& repeats);
// The same of an engine's layout: whether each unit does.
std::vector<char> staying(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules);

}  // namespace zero
