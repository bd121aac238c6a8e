#include "engine/engine_optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "base/text.h"
#include "update/torch_classes.h"
#include "update/torch_steps.h"
#include "zero/error.h"

namespace zero {
namespace {

namespace optim = torch::optim;

bool is_rate(double lr) {
  return lr >= 0 && std::isfinite(lr);
}

// In any order.
bool same_tensors(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  return std::ranges::is_permutation(
      one, other, [](const at::Tensor& mine, const at::Tensor& theirs) { return mine.is_same(theirs); });
}

[[noreturn]] void refuse(const char* call, const char* instead) {
  throw StateError(std::string("the optimizer of an engine is not ") + call + " by itself: its state is the engine's",
                   instead);
}

// A class of LibTorch's whose step is the engine's.
template <class Class>
class Standing final : public Class {
 public:
  template <class Options>
  Standing(std::function<void()> step, const std::vector<EngineOptimizer::Group>& groups, Options options)
      : Class(std::vector<optim::OptimizerParamGroup>(), std::move(options)), step_(std::move(step)) {
    for (const EngineOptimizer::Group& group : groups) {
      this->param_groups_.emplace_back(group.parameters, torch_options(group.optimizer));
      this->param_groups_.back().options().set_lr(group.lr);
    }
  }

  at::Tensor step(optim::Optimizer::LossClosure closure) override {
    at::Tensor loss;
    if (closure) {
      const at::AutoGradMode recorded(true);
      loss = closure();
    }
    step_();
    return loss;
  }
  void save(torch::serialize::OutputArchive&) const override { refuse("saved", "call engine.save(folder)"); }
  void load(torch::serialize::InputArchive&) override { refuse("loaded", "call engine.load(folder)"); }

 private:
  std::function<void()> step_;
};

std::unique_ptr<optim::Optimizer> standing(const Optimizer& given, const std::vector<EngineOptimizer::Group>& groups,
                                           std::function<void()> step) {
  std::unique_ptr<optim::OptimizerOptions> options = torch_options(given);
  return std::visit(
      [&]<class Ours>(const Ours&) -> std::unique_ptr<optim::Optimizer> {
        if constexpr (HasTorchClass<Ours>) {
          using Torchs = TorchClass<Ours>;
          return std::make_unique<Standing<typename Torchs::Class>>(std::move(step), groups,
                                                                    static_cast<typename Torchs::Options&>(*options));
        } else {
          return std::make_unique<Standing<optim::Optimizer>>(std::move(step), groups, std::move(options));
        }
      },
      given);
}

}  // namespace

EngineOptimizer::EngineOptimizer(const Optimizer& given, std::vector<Group> groups, std::function<void()> step)
    : groups_(std::move(groups)), lr_(learning_rate(given)), torch_(standing(given, groups_, std::move(step))) {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const optim::OptimizerOptions& options = this->options(group);
    kinds_.emplace_back(typeid(options));
  }
}

const optim::OptimizerOptions& EngineOptimizer::options(std::size_t group) const {
  return torch_->param_groups()[group].options();
}

Optimizer EngineOptimizer::optimizer(std::size_t group) const {
  return followed(groups_[group].optimizer, options(group));
}

// Where all parameters are in groups, the first of these tells it.
double EngineOptimizer::lr() const {
  if (groups_.empty() || lr(0) == groups_[0].lr) return lr_;
  return groups_[0].ratio.value_or(0) != 0 ? lr(0) / *groups_[0].ratio : lr_;
}

// What schedules and the program have set since changes ratios, but for that by which lr() goes.
void EngineOptimizer::read_rates() {
  const double now = lr();
  const bool moved = now != lr_;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    Group& each = groups_[group];
    const double rate = lr(group);
    const bool set = moved || rate != each.lr || !each.ratio;
    each.lr = rate;
    if (group == 0 && each.ratio.value_or(0) != 0) continue;
    if (set && now != 0) each.ratio = rate / now;
    if (set && now == 0 && rate != 0) each.ratio.reset();
  }
  lr_ = now;
}

void EngineOptimizer::set_lr(double lr) {
  if (!is_rate(lr)) throw ConfigError("a learning rate is not negative, and finite");
  if (const std::string text = fault(); !text.empty()) throw ConfigError(text);
  read_rates();
  lr_ = lr;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    Group& each = groups_[group];
    if (!each.ratio) continue;
    each.lr = lr * *each.ratio;
    torch_->param_groups()[group].options().set_lr(each.lr);
  }
}

std::string EngineOptimizer::fault() const {
  if (torch_->param_groups().size() != groups_.size())
    return "a group was added to an engine's optimizer, whose parameters would not be trained: the engine trains all "
           "that were there when it was built; freeze by requires_grad_(false), or build another engine";
  for (std::size_t group = 0; group < groups_.size(); ++group)
    if (const std::string text = fault(group); !text.empty())
      return "group " + std::to_string(group) + " of the optimizer " + text;
  if (!torch_->state().empty())
    return "state() of an engine's optimizer is empty, and was written to or looked up in: what the engine keeps is "
           "told by Engine::state() and taken over by Engine::load_state()";
  return {};
}

std::string EngineOptimizer::fault(std::size_t group) const {
  const optim::OptimizerParamGroup& now = torch_->param_groups()[group];
  if (!same_tensors(now.params(), groups_[group].parameters))
    return "has other parameters: those of an engine's optimizer are those that the engine was built with; leave its "
           "groups as they are";
  if (!now.has_options()) return "has no options: change the values of those that it had";
  const optim::OptimizerOptions& options = now.options();
  if (kinds_[group] != std::type_index(typeid(options)))
    return "has options of another class than it was given: change the values of those";
  if (!is_rate(options.get_lr()))
    return "has the learning rate " + shortest(options.get_lr()) + ": it is not negative, and finite";
  const Optimizer& before = groups_[group].optimizer;
  const Optimizer after = optimizer(group);
  if (const std::vector<std::string> all = faults(after); !all.empty()) return "was set to " + all.front();
  const std::string value = other_state(before, after);
  if (value.empty()) return {};
  return "was given another " + value + ", to which state of the optimizer belongs that the engine has not: build it " +
         "with " + describe(after);
}

std::string EngineOptimizer::changes() const {
  std::string text;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const std::string now = describe(optimizer(group));
    if (now != describe(groups_[group].optimizer)) text += "group " + std::to_string(group) + " " + now + "; ";
  }
  return text;
}

}  // namespace zero
