// What an engine cannot do along a tensor axis, whatever the module. No torch.
#pragma once

#include <string>
#include <vector>

#include "zero/optimizer.h"
#include "zero/plan.h"

namespace zero {

// Of a plan, one sentence each.
std::vector<std::string> tensor_faults(const Plan& plan);
// What an optimizer needs of a parameter that is cut; empty: nothing that it does not have.
std::string tensor_fault(const Optimizer& optimizer);

}  // namespace zero
