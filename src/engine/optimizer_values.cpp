// What the program sets of its optimizer's values, and an optimizer of LibTorch's that it sets them by.
#include <algorithm>
#include <string>
#include <tuple>

#include "engine/step.h"
#include "zero/error.h"

namespace zero {

// Of a rate to that of parameters in no group, as the engine was built.
std::optional<double> Step::ratio_of(const ParameterRule& rule) const {
  const double given = learning_rate(trained_.optimizer()), own = learning_rate(rule.optimizer);
  if (own == given) return rule.lr_scale;
  if (given == 0) return {};
  return own * rule.lr_scale / given;
}

// Parameters with the same rule, in the layout's order; those with the engine's own learning rate come first.
EngineOptimizer& Step::optimizer(const std::function<void()>& step) {
  if (optimizer_) return *optimizer_;
  std::vector<EngineOptimizer::Group> groups;
  std::vector<std::tuple<std::string, double, int>> kinds;
  for (int number = 0; number < static_cast<int>(trained_.parameters()); ++number) {
    const ParameterRule& rule = trained_.rules()[static_cast<std::size_t>(number)];
    const bool programs = std::holds_alternative<TorchOptimizer>(rule.optimizer);  // its label tells too little
    const std::tuple kind{describe(rule.optimizer), rule.lr_scale, programs ? trained_.group_of(number) : 0};
    const auto at = static_cast<std::size_t>(std::ranges::find(kinds, kind) - kinds.begin());
    if (at == kinds.size()) {
      kinds.push_back(kind);
      groups.push_back({rule.optimizer, parameters_.updater().lr(number), ratio_of(rule)});
    }
    groups[at].numbers.push_back(number);
    groups[at].parameters.push_back(parameters_.at(number));
  }
  std::ranges::stable_partition(groups, [](const EngineOptimizer::Group& group) { return group.ratio == 1; });
  optimizer_ = std::make_unique<EngineOptimizer>(trained_.optimizer(), std::move(groups), step);
  return *optimizer_;
}

ConfigError Step::other_optimizer(const std::string& wanted) const {
  return ConfigError(
      "the engine's optimizer, " + std::string(name(trained_.optimizer())) + ", does not stand for a " + wanted,
      "build the engine with the optimizer of that name, or take a torch::optim::Optimizer&");
}

// Of the rates, which an update that is under way does not read.
void Step::read_learning_rates() {
  if (!optimizer_) return;
  if (const std::string fault = optimizer_->fault(); !fault.empty()) throw ConfigError(fault);
  Updater& updater = parameters_.updater();
  for (std::size_t group = 0; group < optimizer_->groups(); ++group)
    for (const int number : optimizer_->numbers(group))
      if (updater.lr(number) != optimizer_->lr(group)) updater.set_lr(number, optimizer_->lr(group));
  lr_ = optimizer_->lr();
}

// When no update is under way.
void Step::read_other_values() {
  if (!optimizer_) return;
  Updater& updater = parameters_.updater();
  for (std::size_t group = 0; group < optimizer_->groups(); ++group) {
    const std::vector<int>& numbers = optimizer_->numbers(group);
    const Optimizer now = optimizer_->optimizer(group);
    if (std::holds_alternative<TorchOptimizer>(now)) {
      const std::shared_ptr<const torch::optim::OptimizerOptions> options = optimizer_->options(group).clone();
      for (const int number : numbers) updater.set_torch_options(number, options);
    } else if (describe(now) != describe(trained_.rules()[static_cast<std::size_t>(numbers.front())].optimizer)) {
      for (const int number : numbers) {
        updater.states().set_optimizer(number, now);
        trained_.set_optimizer(number, now);
      }
    }
  }
}

}  // namespace zero
