// What LibTorch's options of a parameter group say of an optimizer of the engine's, and back.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>

#include "zero/optimizer.h"

namespace zero {

// Those of LibTorch's class for it, or of a TorchOptimizer's; else a learning rate alone.
std::unique_ptr<torch::optim::OptimizerOptions> torch_options(const Optimizer& optimizer);

// The optimizer with what its options say, but for the learning rate; `options` as torch_options() has them, but for
// their values. A TorchOptimizer, whose options are its own, and one that has none of LibTorch's is as it was.
Optimizer followed(const Optimizer& optimizer, const torch::optim::OptimizerOptions& options);

// The value in which they differ and to which state belongs; empty where there is none.
std::string other_state(const Optimizer& before, const Optimizer& now);

}  // namespace zero
