// What torch::optim computes for an optimizer of ours. Lion, which it does not have, is written here with tensors.
#pragma once

#include <torch/optim.h>

#include <memory>
#include <string>
#include <vector>

#include "zero/optimizer.h"

namespace zero::test {

// Parameters in groups of their own, each with the options of its rule.
std::unique_ptr<torch::optim::Optimizer> torch_optimizer(const std::vector<at::Tensor>& parameters,
                                                         const std::vector<ParameterRule>& rules);

// An optimizer of LibTorch's kind with these options.
template <class Made, class Options>
TorchOptimizer brought(const Options& options, const std::string& label) {
  const auto make = [options](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<Made>(parameters, options);
  };
  return {.make = make, .lr = 2e-3, .label = label};
}

}  // namespace zero::test
