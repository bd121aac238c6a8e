// What torch::optim computes for an optimizer of ours. Lion, which it does not have, is written here with tensors.
#pragma once

#include <torch/optim.h>

#include <memory>
#include <vector>

#include "zero/optimizer.h"

namespace zero::test {

// Parameters in groups of their own, each with the options of its rule.
std::unique_ptr<torch::optim::Optimizer> torch_optimizer(const std::vector<at::Tensor>& parameters,
                                                         const std::vector<ParameterRule>& rules);

}  // namespace zero::test
