#include "torch_optimizers.h"

namespace zero::test {
namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;
using MadeOptions = std::unique_ptr<torch::optim::OptimizerOptions>;

struct LionOptions : torch::optim::OptimizerCloneableOptions<LionOptions> {
  explicit LionOptions(const Lion& lion) : hyper(lion) {}
  double get_lr() const override { return hyper.lr; }
  void set_lr(const double lr) override { hyper.lr = lr; }
  Lion hyper;
};

struct LionState : torch::optim::OptimizerCloneableParamState<LionState> {
  at::Tensor momentum;
};

// Chen et al., 2023, algorithm 2.
class TorchLion : public torch::optim::Optimizer {
 public:
  TorchLion(const Groups& groups, const LionOptions& defaults)
      : Optimizer(groups, std::make_unique<LionOptions>(defaults)) {}

  at::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups())
      for (at::Tensor& parameter : group.params())
        if (parameter.grad().defined()) update(parameter, static_cast<const LionOptions&>(group.options()).hyper);
    return {};
  }

 private:
  void update(at::Tensor& parameter, const Lion& lion) {
    auto& state = state_[parameter.unsafeGetTensorImpl()];
    if (!state) {
      auto fresh = std::make_unique<LionState>();
      fresh->momentum = at::zeros_like(parameter);
      state = std::move(fresh);
    }
    at::Tensor& momentum = static_cast<LionState&>(*state).momentum;
    const at::Tensor& gradient = parameter.grad();
    const at::Tensor direction = (momentum * lion.beta1 + gradient * (1 - lion.beta1)).sign();
    parameter.mul_(1 - lion.lr * lion.weight_decay).add_(direction, -lion.lr);
    momentum.mul_(lion.beta2).add_(gradient, 1 - lion.beta2);
  }
};

MadeOptions options_of(const Sgd& o) {
  auto options = std::make_unique<torch::optim::SGDOptions>(o.lr);
  options->momentum(o.momentum).dampening(o.dampening).nesterov(o.nesterov).weight_decay(o.weight_decay);
  return options;
}

MadeOptions options_of(const AdaGrad& o) {
  auto options = std::make_unique<torch::optim::AdagradOptions>(o.lr);
  options->lr_decay(o.lr_decay).weight_decay(o.weight_decay).eps(o.eps);
  options->initial_accumulator_value(o.initial_accumulator_value);
  return options;
}

MadeOptions options_of(const RmsProp& o) {
  auto options = std::make_unique<torch::optim::RMSpropOptions>(o.lr);
  options->alpha(o.alpha).eps(o.eps).weight_decay(o.weight_decay).momentum(o.momentum).centered(o.centered);
  return options;
}

MadeOptions options_of(const Adam& o) {
  auto options = std::make_unique<torch::optim::AdamOptions>(o.lr);
  options->betas({o.beta1, o.beta2}).eps(o.eps).weight_decay(o.weight_decay).amsgrad(o.amsgrad);
  return options;
}

MadeOptions options_of(const AdamW& o) {
  auto options = std::make_unique<torch::optim::AdamWOptions>(o.lr);
  options->betas({o.beta1, o.beta2}).eps(o.eps).weight_decay(o.weight_decay).amsgrad(o.amsgrad);
  return options;
}

MadeOptions options_of(const Lion& o) {
  return std::make_unique<LionOptions>(o);
}

// LibTorch has none over whole tensors: tests/ranks/whole_test.cpp has their mathematics.
template <class Whole>
MadeOptions options_of(const Whole&) {
  throw std::logic_error("no such optimizer in LibTorch");
}

template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> make(const Groups& groups) {
  return std::make_unique<Optimizer>(groups, static_cast<const Options&>(groups.front().options()));
}

struct Maker {
  const Groups& groups;
  using Made = std::unique_ptr<torch::optim::Optimizer>;
  Made operator()(const Sgd&) const { return make<torch::optim::SGD, torch::optim::SGDOptions>(groups); }
  Made operator()(const AdaGrad&) const { return make<torch::optim::Adagrad, torch::optim::AdagradOptions>(groups); }
  Made operator()(const RmsProp&) const { return make<torch::optim::RMSprop, torch::optim::RMSpropOptions>(groups); }
  Made operator()(const Adam&) const { return make<torch::optim::Adam, torch::optim::AdamOptions>(groups); }
  Made operator()(const AdamW&) const { return make<torch::optim::AdamW, torch::optim::AdamWOptions>(groups); }
  Made operator()(const Lion&) const { return make<TorchLion, LionOptions>(groups); }
  template <class Whole>
  Made operator()(const Whole&) const {
    return {};
  }
};

}  // namespace

std::unique_ptr<torch::optim::Optimizer> torch_optimizer(const std::vector<at::Tensor>& parameters,
                                                         const std::vector<ParameterRule>& rules) {
  const auto options = [](const ParameterRule& rule) {
    return std::visit([](const auto& o) { return options_of(o); }, rule.optimizer);
  };
  Groups groups;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    groups.emplace_back(std::vector<at::Tensor>{parameters[i]}, options(rules[i]));
  auto made = std::visit(Maker{groups}, rules.front().optimizer);
  // A value of a group that is LibTorch's default gives way to the optimizer's when the group is added.
  for (std::size_t i = 0; made && i < rules.size(); ++i) made->param_groups()[i].set_options(options(rules[i]));
  return made;
}

}  // namespace zero::test
