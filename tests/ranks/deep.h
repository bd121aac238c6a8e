// A model of layers alike, trained within an activation budget.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness.h"
#include "zero/activations.h"

namespace zero::test {

struct Deep : torch::nn::Module {
  explicit Deep(int layers = 8) {
    for (int i = 0; i < layers; ++i)
      stack->push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(64, 64)));
    const at::NoGradGuard no_grad;
    at::Generator generator = at::detail::createCPUGenerator(1);
    for (const at::Tensor& each : parameters()) each.copy_(at::randn(each.sizes(), generator) * .1);
  }
  // `look`: at each activation.
  at::Tensor loss(const at::Tensor& x, const std::function<void(int, at::Tensor&)>& look = {}) {
    at::Tensor y = x;
    for (std::size_t i = 0; i < stack->size(); ++i) {
      y = torch::gelu(stack->ptr<torch::nn::LinearImpl>(i)->forward(y));
      if (look) look(static_cast<int>(i), y);
    }
    return y.square().mean();
  }
  torch::nn::ModuleList stack{};
};

inline at::Tensor input(int index, std::int64_t rows = 32) {
  return at::randn({rows, 64}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 + index)));
}

inline Plan within(const ActivationBudget& budget) {
  return Plan::zero3().activation_budget(budget);
}

// One rank, some steps; the losses, to the bit.
inline std::vector<float> losses(const Plan& plan, int steps, const std::function<at::Tensor(Deep&, int step)>& loss,
                                 ActivationReport* report = nullptr) {
  auto model = std::make_shared<Deep>();
  Engine engine(*model, World(), plan, AdamW{});
  std::vector<float> all;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor value = loss(*model, step);
    engine.backward(value);
    engine.step();
    all.push_back(value.item<float>());
    if (report != nullptr) *report = engine.activations();
  }
  return all;
}

inline std::vector<float> plain_losses(const Plan& plan, int steps, ActivationReport* report = nullptr) {
  return losses(
      plan, steps, [](Deep& model, int step) { return model.loss(input(step)); }, report);
}

}  // namespace zero::test
