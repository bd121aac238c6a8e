#include "update/torch_options.h"

#include <ATen/Functions.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tuple>
#include <variant>

#include "zero/error.h"

namespace zero {
namespace {

namespace optim = torch::optim;
using TorchOptions = std::unique_ptr<optim::OptimizerOptions>;

// All that a schedule of LibTorch's asks of a group.
class RateOptions final : public optim::OptimizerCloneableOptions<RateOptions> {
 public:
  explicit RateOptions(double lr) : lr_(lr) {}
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }

 private:
  double lr_;
};

template <class Of>
TorchOptions copied_options(const Of& options) {
  return std::make_unique<Of>(options);
}

TorchOptions torch_options_of(const Sgd& o) {
  return copied_options(optim::SGDOptions(o.lr)
                            .momentum(o.momentum)
                            .dampening(o.dampening)
                            .weight_decay(o.weight_decay)
                            .nesterov(o.nesterov));
}
TorchOptions torch_options_of(const AdaGrad& o) {
  return copied_options(optim::AdagradOptions(o.lr)
                            .lr_decay(o.lr_decay)
                            .weight_decay(o.weight_decay)
                            .initial_accumulator_value(o.initial_accumulator_value)
                            .eps(o.eps));
}
TorchOptions torch_options_of(const RmsProp& o) {
  return copied_options(optim::RMSpropOptions(o.lr)
                            .alpha(o.alpha)
                            .eps(o.eps)
                            .weight_decay(o.weight_decay)
                            .momentum(o.momentum)
                            .centered(o.centered));
}
template <class Of, class Adams>
TorchOptions torch_options_of_adams(const Adams& o) {
  return copied_options(Of(o.lr).betas({o.beta1, o.beta2}).eps(o.eps).weight_decay(o.weight_decay).amsgrad(o.amsgrad));
}
TorchOptions torch_options_of(const Adam& o) {
  return torch_options_of_adams<optim::AdamOptions>(o);
}
TorchOptions torch_options_of(const AdamW& o) {
  return torch_options_of_adams<optim::AdamWOptions>(o);
}
TorchOptions torch_options_of(const TorchOptimizer& o) {
  const auto made = o.make({at::zeros({1}).requires_grad_(true)});
  if (!made) throw ConfigError(o.label + ": make returned no optimizer");
  const auto& groups = made->param_groups();
  if (groups.empty() || !groups.front().has_options()) return std::make_unique<RateOptions>(o.lr);
  return groups.front().options().clone();
}
template <class Other>
TorchOptions torch_options_of(const Other& o) {
  return std::make_unique<RateOptions>(o.lr);
}

void follow_options(Sgd& o, const optim::OptimizerOptions& said) {
  const auto& options = static_cast<const optim::SGDOptions&>(said);
  o.momentum = options.momentum();
  o.dampening = options.dampening();
  o.weight_decay = options.weight_decay();
  o.nesterov = options.nesterov();
}
void follow_options(AdaGrad& o, const optim::OptimizerOptions& said) {
  const auto& options = static_cast<const optim::AdagradOptions&>(said);
  o.lr_decay = options.lr_decay();
  o.weight_decay = options.weight_decay();
  o.initial_accumulator_value = options.initial_accumulator_value();
  o.eps = options.eps();
}
void follow_options(RmsProp& o, const optim::OptimizerOptions& said) {
  const auto& options = static_cast<const optim::RMSpropOptions&>(said);
  o.alpha = options.alpha();
  o.eps = options.eps();
  o.weight_decay = options.weight_decay();
  o.momentum = options.momentum();
  o.centered = options.centered();
}
template <class Of, class Adams>
void follow_adams(Adams& o, const Of& options) {
  std::tie(o.beta1, o.beta2) = options.betas();
  o.eps = options.eps();
  o.weight_decay = options.weight_decay();
  o.amsgrad = options.amsgrad();
}
void follow_options(Adam& o, const optim::OptimizerOptions& said) {
  follow_adams(o, static_cast<const optim::AdamOptions&>(said));
}
void follow_options(AdamW& o, const optim::OptimizerOptions& said) {
  follow_adams(o, static_cast<const optim::AdamWOptions&>(said));
}
template <class Other>
void follow_options(Other&, const optim::OptimizerOptions&) {}

const char* value_with_state(const Sgd& before, const Sgd& now) {
  return (before.momentum != 0) != (now.momentum != 0) ? "momentum" : "";
}
const char* value_with_state(const AdaGrad& before, const AdaGrad& now) {
  return before.initial_accumulator_value != now.initial_accumulator_value ? "initial_accumulator_value" : "";
}
const char* value_with_state(const RmsProp& before, const RmsProp& now) {
  if ((before.momentum != 0) != (now.momentum != 0)) return "momentum";
  return before.centered != now.centered ? "centered" : "";
}
const char* value_with_state(const Adam& before, const Adam& now) {
  return before.amsgrad != now.amsgrad ? "amsgrad" : "";
}
const char* value_with_state(const AdamW& before, const AdamW& now) {
  return before.amsgrad != now.amsgrad ? "amsgrad" : "";
}
template <class Other>
const char* value_with_state(const Other&, const Other&) {
  return "";
}

}  // namespace

TorchOptions torch_options(const Optimizer& optimizer) {
  return std::visit([](const auto& value) { return torch_options_of(value); }, optimizer);
}

Optimizer followed(const Optimizer& optimizer, const optim::OptimizerOptions& options) {
  Optimizer now = optimizer;
  std::visit([&](auto& value) { follow_options(value, options); }, now);
  return now;
}

std::string other_state(const Optimizer& before, const Optimizer& now) {
  return std::visit(
      [&](const auto& value) -> const char* {
        return value_with_state(value, std::get<std::remove_cvref_t<decltype(value)>>(now));
      },
      before);
}

}  // namespace zero
