#include "engine/engine_optimizer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "base/text.h"
#include "engine/impl.h"
#include "zero/error.h"

namespace zero {
namespace {

// All that a schedule of LibTorch's asks of a group.
class GroupOptions final : public torch::optim::OptimizerCloneableOptions<GroupOptions> {
 public:
  explicit GroupOptions(double lr) : lr_(lr) {}
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }

 private:
  double lr_;
};

std::vector<torch::optim::OptimizerParamGroup> torch_groups(const std::vector<EngineOptimizer::Group>& groups) {
  std::vector<torch::optim::OptimizerParamGroup> all;
  for (const EngineOptimizer::Group& group : groups)
    all.emplace_back(group.parameters, std::make_unique<GroupOptions>(group.lr));
  return all;
}

bool is_rate(double lr) {
  return lr >= 0 && std::isfinite(lr);
}

[[noreturn]] void refuse(const char* call, const char* instead) {
  throw StateError(std::string("the optimizer of an engine is not ") + call + " by itself: its state is the engine's",
                   instead);
}

}  // namespace

EngineOptimizer::EngineOptimizer(const std::vector<Group>& groups, std::function<void()> step)
    : Optimizer(torch_groups(groups), std::make_unique<GroupOptions>(groups.empty() ? 0 : groups.front().lr)),
      step_(std::move(step)) {
  for (const Group& group : groups) numbers_.push_back(group.numbers);
  for (std::size_t i = 0; i < groups.size(); ++i) set_lr(i, groups[i].lr);  // LibTorch has set that of all groups
}

double EngineOptimizer::lr(std::size_t group) const {
  return param_groups()[group].options().get_lr();
}

void EngineOptimizer::set_lr(std::size_t group, double lr) {
  param_groups()[group].options().set_lr(lr);
}

std::string EngineOptimizer::fault() const {
  if (param_groups().size() != numbers_.size())
    return "a group was added to an engine's optimizer, whose parameters would not be trained: the engine trains all "
           "that were there when it was built; freeze by requires_grad_(false), or build another engine";
  for (std::size_t group = 0; group < numbers_.size(); ++group) {
    if (param_groups()[group].params().size() != numbers_[group].size())
      return "the parameters of an engine's optimizer are those that the engine was built with: leave its groups as "
             "they are";
    if (!is_rate(lr(group)))
      return "group " + std::to_string(group) + " of the optimizer has the learning rate " + shortest(lr(group)) +
             ": it is not negative, and finite";
  }
  return {};
}

at::Tensor EngineOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode recorded(true);
    loss = closure();
  }
  step_();
  return loss;
}

void EngineOptimizer::save(torch::serialize::OutputArchive&) const {
  refuse("saved", "call engine.save(folder)");
}

void EngineOptimizer::load(torch::serialize::InputArchive&) {
  refuse("loaded", "call engine.load(folder)");
}

// Parameters with the same rule, in the layout's order; those with the engine's own learning rate come first.
EngineOptimizer& Engine::Impl::optimizer() {
  check_alive();
  if (optimizer_) return *optimizer_;
  std::vector<EngineOptimizer::Group> groups;
  std::vector<std::pair<std::string, double>> rules;
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const std::pair rule{describe(rules_[i].optimizer), rules_[i].lr_scale};
    const auto at = static_cast<std::size_t>(std::ranges::find(rules, rule) - rules.begin());
    const auto number = static_cast<int>(i);
    if (at == rules.size()) {
      rules.push_back(rule);
      groups.push_back({{}, {}, updater_.lr(number)});
    }
    groups[at].numbers.push_back(number);
    groups[at].parameters.push_back(parameter_at(number));
  }
  std::ranges::stable_partition(groups, [this](const EngineOptimizer::Group& group) { return group.lr == lr_; });
  optimizer_ = std::make_unique<EngineOptimizer>(groups, [this] { step(); });
  return *optimizer_;
}

void Engine::Impl::set_lr(double lr) {
  if (!is_rate(lr)) throw ConfigError(rank_text() + ": a learning rate is not negative, and finite");
  EngineOptimizer& optimizer = this->optimizer();
  const double before = optimizer.lr(0);
  for (std::size_t group = 0; group < optimizer.numbers().size(); ++group)
    optimizer.set_lr(group, optimizer.lr(group) == before ? lr : optimizer.lr(group) / before * lr);
}

// What the program has set since.
void Engine::Impl::heed_learning_rates() {
  if (!optimizer_) return;
  if (const std::string fault = optimizer_->fault(); !fault.empty()) throw ConfigError(rank_text() + ": " + fault);
  for (std::size_t group = 0; group < optimizer_->numbers().size(); ++group)
    for (const int number : optimizer_->numbers()[group])
      if (updater_.lr(number) != optimizer_->lr(group)) updater_.set_lr(number, optimizer_->lr(group));
  if (!optimizer_->numbers().empty()) lr_ = optimizer_->lr(0);
}

}  // namespace zero
