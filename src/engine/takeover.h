// Finds what there is to train in a module: parameters, grouped into units, and buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "zero/layout.h"
#include "zero/optimizer.h"
#include "zero/plan.h"

namespace torch::nn {
class Module;
}

namespace zero {

// Parameters that several modules share appear once, under the first name.
struct Inventory {
  std::vector<ParameterSpec> specs;
  std::vector<at::Tensor> parameters;  // in the order of specs
  std::vector<ParameterInfo> infos;    // likewise
  std::vector<at::Tensor> replicated;  // buffers, and parameters of integer types
};

// A unit is a child of a ModuleList, ModuleDict or Sequential (of the innermost that is not itself
// inside a unit); what is left over is grouped by the module that owns it. Throws ConfigError for
// parameters that cannot be managed: sparse, complex, overlapping in memory, not on the CPU, or
// trained by another engine.
Inventory take_inventory(torch::nn::Module& module, const Plan& plan,
                         const std::function<bool(const ParameterInfo&)>& full_precision);

}  // namespace zero
