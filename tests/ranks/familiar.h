#pragma once

#include <torch/torch.h>

#include "harness.h"

namespace zero::test {

using torch::nn::Linear;

// What the loops of LibTorch train.
struct Net : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = torch::dropout(torch::tanh(body(numbers(index, {4, 7}))), 0.2, is_training());
    return right(left(x)).to(at::kFloat).square().mean();
  }
  Linear body = register_module("body", Linear(7, 90));
  Linear left = register_module("left", Linear(90, 3)), right = register_module("right", Linear(3, 2));
};

inline const Job kJob{.optimizer = Sgd{.lr = 0.1, .momentum = 0.9}, .options = {.clip = 1}, .steps = 4};

}  // namespace zero::test
