#include "analysis/watched.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <optional>

#include "state/unit.h"

namespace zero {
namespace {

// The memory behind a tensor, if it is its own, and no engine's.
const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || Unit::of(tensor.unsafeGetTensorImpl()) != nullptr) return nullptr;
  const c10::StorageImpl* const storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return storage->data() == nullptr || storage->nbytes() == 0 ? nullptr : storage;
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

// A gradient may be gone again before anybody looks.
class Watched::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(std::shared_ptr<MemoryLog> log, std::string unit) : log_(std::move(log)), unit_(std::move(unit)) {}

  void operator()(const torch::autograd::Variable& parameter) override {
    if (const c10::StorageImpl* const memory = memory_of(parameter.grad()))
      log_->claim(memory->data(), static_cast<std::int64_t>(memory->nbytes()), MemoryOwner::gradient, unit_);
  }

 private:
  std::shared_ptr<MemoryLog> log_;
  std::string unit_;
};

Watched::~Watched() {
  for (const Parameter& each : parameters_) {
    const at::Tensor tensor = at::Tensor::wrap_tensor_impl(each.tensor.lock());
    if (!tensor.defined()) continue;
    auto& hook = torch::autograd::impl::post_acc_grad_hooks(tensor);
    if (dynamic_cast<const Hook*>(hook.get()) != nullptr) hook.reset();
  }
}

void Watched::add(const at::Tensor& tensor, MemoryOwner owner, const std::string& unit) {
  const void* const key = tensor.unsafeGetTensorImpl();
  parameters_.push_back({WeakTensor(tensor.getIntrusivePtr()), key, owner, unit});
  claim(tensor, owner, unit);
}

void Watched::add(const torch::nn::Module& module) {
  for (const auto& item : module.named_buffers())
    if (item.value().defined()) add(item.value(), MemoryOwner::parameter, unit_of(item.key()));
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!parameter.defined() || !units_.try_emplace(parameter.unsafeGetTensorImpl(), unit_of(item.key())).second)
      continue;
    add(parameter, MemoryOwner::parameter, unit_of(item.key()));
    if (parameter.requires_grad() && parameter.is_leaf() && Unit::of(parameter.unsafeGetTensorImpl()) == nullptr &&
        !torch::autograd::impl::post_acc_grad_hooks(parameter))
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Hook>(log_, unit_of(item.key())));
  }
  refresh();
}

void Watched::add(torch::optim::Optimizer& optimizer) {
  optimizers_.push_back(&optimizer);
  refresh();
}

void Watched::claim(const at::Tensor& tensor, MemoryOwner owner, const std::string& unit) {
  const c10::StorageImpl* const memory = memory_of(tensor);
  if (memory == nullptr) return;
  const auto number = log_->claim(memory->data(), static_cast<std::int64_t>(memory->nbytes()), owner, unit);
  claims_.try_emplace(number, Claim{tensor.storage().getWeakStorageImpl(), memory->data()});
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
  std::erase_if(claims_, [this](const auto& item) {
    const auto& [number, claim] = item;
    const auto storage = claim.storage.lock();
    if (storage && storage->data() == claim.data) return false;
    log_->went(claim.data, number);
    return true;
  });
}

void Watched::refresh() {
  drop_ended();
  for (const Parameter& each : parameters_) {
    const at::Tensor tensor = at::Tensor::wrap_tensor_impl(each.tensor.lock());
    if (!tensor.defined()) continue;
    claim(tensor, each.owner, each.unit);
    if (tensor.is_leaf() && tensor.grad().defined()) claim(tensor.grad(), MemoryOwner::gradient, each.unit);
  }
  for (torch::optim::Optimizer* optimizer : optimizers_) claim_state(*optimizer);
}

}  // namespace zero
