#include "gradients/accumulation_hook.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "backwards/running_backward.h"

namespace zero {

class AccumulationHook::Hook final : public torch::autograd::FunctionPostHook {
 public:
  explicit Hook(std::weak_ptr<const std::function<void()>> call) : call_(std::move(call)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& gradients) override {
    const bool came = !gradients.empty() && gradients.front().defined();
    if (const auto call = came ? call_.lock() : nullptr) (*call)();
    return outputs;
  }

 private:
  std::weak_ptr<const std::function<void()>> call_;
};

namespace {

// As nodes tell their hooks apart.
std::uintptr_t key_of(const std::unique_ptr<torch::autograd::FunctionPostHook>& hook) {
  return reinterpret_cast<std::uintptr_t>(hook.get());
}

// Of a frozen parameter the one that it has once it is trained.
c10::intrusive_ptr<torch::autograd::Node> accumulator_of(const at::Tensor& parameter) {
  using namespace torch::autograd;
  if (parameter.requires_grad()) return impl::grad_accumulator(parameter);
  if (auto known = impl::try_get_grad_accumulator(parameter)) return known;
  const c10::intrusive_ptr<Node> made = c10::make_intrusive<AccumulateGrad>(parameter);
  impl::set_grad_accumulator(parameter, c10::weak_intrusive_ptr<Node>(made));
  return made;
}

}  // namespace

AccumulationHook::AccumulationHook(at::Tensor parameter, std::function<void()> call)
    : parameter_(std::move(parameter)), call_(std::make_shared<const std::function<void()>>(std::move(call))) {
  renew();
}

AccumulationHook::~AccumulationHook() {
  if (RunningBackward::current() == nullptr) leave();
}

void AccumulationHook::renew() {
  auto node = accumulator_of(parameter_);
  if (node != node_) {
    leave();
    node_ = std::move(node);
  }
  auto& hooks = node_->post_hooks();
  const auto mine = std::ranges::find(hooks, key_, key_of);
  if (mine != hooks.end()) {
    std::rotate(mine, mine + 1, hooks.end());
  } else {
    key_ = node_->add_post_hook(std::make_unique<Hook>(call_));
  }
}

void AccumulationHook::leave() {
  if (node_) node_->del_post_hook(key_);
}

}  // namespace zero
