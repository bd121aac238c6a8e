// An engine as an optimizer of LibTorch's.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <typeindex>
#include <vector>

#include "zero/optimizer.h"

namespace zero {

class EngineOptimizer {
 public:
  // Parameters that are updated alike, by their numbers in the layout.
  struct Group {
    Optimizer optimizer;
    double lr = 0;
    std::optional<double> ratio = {};  // of its rate to that of parameters in no group, where there is one
    std::vector<int> numbers = {};
    std::vector<at::Tensor> parameters = {};
  };
  // `given`: to parameters in no group, which come first.
  EngineOptimizer(const Optimizer& given, std::vector<Group> groups, std::function<void()> step);

  // What code that takes an optimizer is given: of LibTorch's class for `given`.
  torch::optim::Optimizer& torch() { return *torch_; }
  const torch::optim::Optimizer& torch() const { return *torch_; }

  // Of parameters in no group, and those of groups by the same factor. Throws ConfigError for what is no rate, and
  // where there is a fault().
  void set_lr(double lr);
  // What the program has set of parameters in no group.
  double lr() const;

  std::size_t groups() const { return groups_.size(); }
  const std::vector<int>& numbers(std::size_t group) const { return groups_[group].numbers; }
  // As the program has set them.
  double lr(std::size_t group) const { return options(group).get_lr(); }
  Optimizer optimizer(std::size_t group) const;
  const torch::optim::OptimizerOptions& options(std::size_t group) const;
  // What the program has set that cannot be; empty where there is nothing.
  std::string fault() const;
  // Values beside rates that are others than the engine was built with, in words; empty where there are none.
  std::string changes() const;

 private:
  std::string fault(std::size_t group) const;
  void read_rates();

  std::vector<Group> groups_;           // with the rates that were seen last
  std::vector<std::type_index> kinds_;  // of their options
  double lr_;                           // seen last
  std::unique_ptr<torch::optim::Optimizer> torch_;
};

}  // namespace zero
