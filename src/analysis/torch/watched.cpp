#include "analysis/torch/watched.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <optional>

#include "units/unit.h"
#include "zero/error.h"

namespace zero {
namespace {

// Undefined if it is not. Asks nothing of the tensor, whose memory may be paged out.
at::Tensor alive(const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>& tensor) {
  return at::Tensor(tensor.lock());
}

struct BlockBehind {
  const void* data = nullptr;
  std::int64_t bytes = 0;
};

// Behind a tensor, on the device; none where it has none, or an engine's.
BlockBehind memory_of(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.device() != device ||
      Unit::of(tensor.unsafeGetTensorImpl()) != nullptr)
    return {};
  c10::StorageImpl* const storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  const void* const data = storage->_mutable_data_ptr_no_checks().get();
  return {data, data == nullptr ? 0 : static_cast<std::int64_t>(storage->nbytes())};
}

std::vector<at::Tensor> tensors_in(const torch::optim::LBFGSParamState& state) {
  std::vector<at::Tensor> tensors{state.d(), state.prev_flat_grad(), state.H_diag()};
  for (const auto* each : {&state.old_dirs(), &state.old_stps(), &state.ro()})
    tensors.insert(tensors.end(), each->begin(), each->end());
  if (state.al()) tensors.insert(tensors.end(), state.al()->begin(), state.al()->end());
  return tensors;
}

std::vector<at::Tensor> tensors_in(const torch::optim::OptimizerParamState& state) {
  using namespace torch::optim;
  if (const auto* adam = dynamic_cast<const AdamParamState*>(&state))
    return {adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()};
  if (const auto* adam = dynamic_cast<const AdamWParamState*>(&state))
    return {adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()};
  if (const auto* sgd = dynamic_cast<const SGDParamState*>(&state)) return {sgd->momentum_buffer()};
  if (const auto* adagrad = dynamic_cast<const AdagradParamState*>(&state)) return {adagrad->sum()};
  if (const auto* prop = dynamic_cast<const RMSpropParamState*>(&state))
    return {prop->square_avg(), prop->momentum_buffer(), prop->grad_avg()};
  if (const auto* lbfgs = dynamic_cast<const LBFGSParamState*>(&state)) return tensors_in(*lbfgs);
  return {};
}

// "encoder.layer.weight": the module's name; of a module's own parameter, its own.
std::string unit_of(const std::string& parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}

}  // namespace

void require_on(c10::Device analyzers, c10::Device others, const std::string& what) {
  if (others == analyzers) return;
  throw ConfigError("MemoryAnalyzer::watch: the analyzer is of device '" + analyzers.str() + "', and " + what +
                        " on '" + others.str() + "'",
                    "make it a MemoryAnalyzer of that device");
}

// A gradient may be gone again before anybody looks.
class Watched::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(std::shared_ptr<MemoryLog> log, c10::Device device, std::string unit)
      : log_(std::move(log)), device_(device), unit_(std::move(unit)) {}

  void operator()(const torch::autograd::Variable& parameter) override {
    if (const auto [data, bytes] = memory_of(parameter.grad(), device_); bytes > 0)
      log_->claim(data, bytes, MemoryOwner::gradient, unit_);
  }

 private:
  std::shared_ptr<MemoryLog> log_;
  c10::Device device_;
  std::string unit_;
};

Watched::~Watched() {
  for (const WeakTensor& each : hooked_) {
    const at::Tensor tensor = alive(each);
    if (!tensor.defined()) continue;
    auto& hook = torch::autograd::impl::post_acc_grad_hooks(tensor);
    if (dynamic_cast<const Hook*>(hook.get()) != nullptr) hook.reset();
  }
}

void Watched::add(const at::Tensor& tensor, MemoryOwner owner, const std::string& unit) {
  if (!tensor.defined())
    throw ConfigError("MemoryAnalyzer::watch: the tensor is not defined", "watch it when it has been made");
  require_on(device_, tensor.device(), "what is watched is");
  drop_ended();
  put(tensor, owner, unit);
}

void Watched::require_some_here(const torch::nn::Module& module) const {
  const auto here = [this](const at::Tensor& tensor) { return tensor.defined() && tensor.device() == device_; };
  const std::vector<at::Tensor> parameters = module.parameters(), buffers = module.buffers();
  if (std::ranges::any_of(parameters, here) || std::ranges::any_of(buffers, here)) return;
  for (const auto* tensors : {&parameters, &buffers})
    for (const at::Tensor& tensor : *tensors)
      if (tensor.defined()) require_on(device_, tensor.device(), "what is watched is");
}

void Watched::put(const at::Tensor& tensor, MemoryOwner owner, const std::string& unit) {
  const void* const key = tensor.unsafeGetTensorImpl();
  if (!units_.insert_or_assign(key, unit).second)
    std::erase_if(tensors_, [&](const auto& one) { return one.key == key; });
  tensors_.push_back({WeakTensor(tensor.getIntrusivePtr()), key, owner, unit});
  claim(tensor, owner, unit);
}

// Where nobody else has one.
void Watched::hook(const at::Tensor& parameter, const std::string& unit) {
  if (!parameter.requires_grad() || !parameter.is_leaf() || Unit::of(parameter.unsafeGetTensorImpl()) != nullptr ||
      torch::autograd::impl::post_acc_grad_hooks(parameter))
    return;
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Hook>(log_, device_, unit));
  hooked_.emplace_back(parameter.getIntrusivePtr());
}

void Watched::add(const torch::nn::Module& module) {
  require_some_here(module);
  drop_ended();
  for (const auto& item : module.named_buffers())
    if (!units_.contains(item.value().unsafeGetTensorImpl()))
      put(item.value(), MemoryOwner::parameter, unit_of(item.key()));
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    const void* const key = parameter.unsafeGetTensorImpl();
    if (!units_.contains(key)) put(parameter, MemoryOwner::parameter, unit_of(item.key()));
    hook(parameter, units_.at(key));
  }
  refresh();
}

void Watched::add(torch::optim::Optimizer& optimizer) {
  optimizers_.push_back(&optimizer);
  refresh();
}

void Watched::claim(const at::Tensor& tensor, MemoryOwner owner, const std::string& unit) {
  const auto [data, bytes] = memory_of(tensor, device_);
  if (bytes == 0) return;
  claims_.try_emplace(log_->claim(data, bytes, owner, unit), Claim{tensor.storage().getWeakStorageImpl(), data});
}

void Watched::claim_state(torch::optim::Optimizer& optimizer) {
  for (const auto& [key, state] : optimizer.state()) {
    const auto unit = units_.find(key);
    for (const at::Tensor& tensor : tensors_in(*state))
      claim(tensor, MemoryOwner::optimizer, unit == units_.end() ? std::string() : unit->second);
  }
}

// Memory from elsewhere than libzero's allocator ends unheard.
void Watched::drop_ended() {
  std::erase_if(tensors_, [this](const Tensor& each) { return each.tensor.expired() && units_.erase(each.key) > 0; });
  std::erase_if(hooked_, [](const WeakTensor& each) { return each.expired(); });
  std::erase_if(claims_, [this](const auto& item) {
    const auto& [number, claim] = item;
    const auto storage = claim.storage.lock();
    if (storage && storage->_mutable_data_ptr_no_checks().get() == claim.data) return false;
    log_->went(claim.data, number);
    return true;
  });
}

void Watched::refresh() {
  drop_ended();
  for (const Tensor& each : tensors_) {
    const at::Tensor tensor = alive(each.tensor);
    if (!tensor.defined()) continue;
    claim(tensor, each.owner, each.unit);
    if (tensor.is_leaf() && tensor.grad().defined()) claim(tensor.grad(), MemoryOwner::gradient, each.unit);
  }
  for (torch::optim::Optimizer* optimizer : optimizers_) claim_state(*optimizer);
}

}  // namespace zero
