#include "zero/deferred.h"

#include <torch/nn/module.h>

#include "deferred/deferred_tensors.h"

namespace zero {
namespace {

void for_each_tensor(const torch::nn::Module& module,
                     const std::function<void(const std::string& name, const at::Tensor& tensor)>& call) {
  for (const auto& item : module.named_parameters()) call(item.key(), item.value());
  for (const auto& item : module.named_buffers()) call(item.key(), item.value());
}

}  // namespace

Deferring::Deferring() {
  deferred_tensors::begin();
}

Deferring::~Deferring() {
  deferred_tensors::end();
}

void Deferring::name(const torch::nn::Module& module) {
  for_each_tensor(module, [](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) deferred_tensors::name(tensor, name);
  });
}

void materialize(torch::nn::Module& module) {
  for_each_tensor(module, [](const std::string&, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    deferred_tensors::settle(tensor);
    deferred_tensors::forget(tensor);
  });
}

}  // namespace zero
