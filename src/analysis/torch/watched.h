// The tensors of a device whose owner is known: those of modules, their gradients, and what optimizers keep. They are
// not kept alive.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "analysis/log.h"

namespace zero {

// Throws ConfigError where `what`, as the error calls it, is not on the analyzer's device.
void require_on(c10::Device analyzers, c10::Device others, const std::string& what);

class Watched {
 public:
  Watched(std::shared_ptr<MemoryLog> log, c10::Device device) : log_(std::move(log)), device_(device) {}
  ~Watched();
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  // Throw ConfigError where nothing of it is there.
  void add(const torch::nn::Module& module);
  void add(torch::optim::Optimizer& optimizer);
  void add(const at::Tensor& tensor, MemoryOwner owner, const std::string& unit);

  // Tells the log whose is what, as it is now.
  void refresh();

 private:
  class Hook;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Tensor {
    WeakTensor tensor;
    const void* key;  // its address, which is its own as long as it is here
    MemoryOwner owner;
    std::string unit;
  };
  struct Claim {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data;
  };

  void require_some_here(const torch::nn::Module& module) const;
  void put(const at::Tensor& tensor, MemoryOwner owner, const std::string& unit);
  void hook(const at::Tensor& parameter, const std::string& unit);
  void claim(const at::Tensor& tensor, MemoryOwner owner, const std::string& unit);
  void claim_state(torch::optim::Optimizer& optimizer);
  void drop_ended();

  std::shared_ptr<MemoryLog> log_;
  c10::Device device_;
  std::vector<Tensor> tensors_;
  std::unordered_map<const void*, std::string> units_;  // of tensors_, by key
  std::vector<WeakTensor> hooked_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  std::unordered_map<std::int64_t, Claim> claims_;  // by the block's number
};

}  // namespace zero
