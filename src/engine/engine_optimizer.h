// An engine as an optimizer of LibTorch's.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace zero {

class EngineOptimizer final : public torch::optim::Optimizer {
 public:
  // Parameters that are updated alike, by their numbers in the layout.
  struct Group {
    std::vector<int> numbers;
    std::vector<at::Tensor> parameters;
    double lr;
  };
  EngineOptimizer(const std::vector<Group>& groups, std::function<void()> step);

  // Of its group, as the program has set it.
  double lr(std::size_t group) const;
  void set_lr(std::size_t group, double lr);
  const std::vector<std::vector<int>>& numbers() const { return numbers_; }
  // What the program has set that cannot be; empty where there is nothing.
  std::string fault() const;

  using Optimizer::step;
  at::Tensor step(LossClosure closure) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::vector<std::vector<int>> numbers_;  // by group
  std::function<void()> step_;
};

}  // namespace zero
