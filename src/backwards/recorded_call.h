// A call of an operator below autograd that can be run once more, with everything that its results depend on: the keys
// that it was dispatched by, autocast, whether gradients were enabled, the state of the generator. Tensors whose
// storages are traced (backwards/activation_window.h) are noted as shells, which keep no memory alive: sizes, strides
// and dtype, without a storage.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <span>
#include <vector>

#include "backwards/autocast.h"

namespace zero {

class RecordedCall {
 public:
  using Traced = std::function<bool(const at::Tensor&)>;

  // `traced`: whether a tensor's storage is. `keys`: those that the operator is redispatched by.
  RecordedCall(const c10::OperatorHandle& op, c10::DispatchKeySet keys, std::span<const c10::IValue> arguments,
               const Traced& traced);

  // Runs it, and returns its results. `storages`: for each shell, in the order of the arguments, the one that it has
  // meanwhile. What it writes of tensors that are not traced are copies.
  torch::jit::Stack run(std::span<const c10::Storage> storages);

  const torch::jit::Stack& arguments() const { return arguments_; }
  // Which of its results are traced, in order.
  void add_place(int result) { places_.push_back(result); }
  const std::vector<int>& places() const { return places_; }

 private:
  struct Shell {
    at::Tensor tensor;
    bool requires_grad;  // kernels ask
  };
  struct Surroundings;
  class Lent;

  c10::OperatorHandle op_;
  c10::DispatchKeySet keys_;
  torch::jit::Stack arguments_;
  std::vector<Shell> shells_;
  std::vector<std::size_t> copied_;  // numbers of arguments
  std::vector<int> places_;
  c10::impl::LocalDispatchKeySet local_;  // kernels call operators
  Cast cast_{at::kCPU, at::kFloat};
  bool gradients_;
  at::Generator generator_;  // as it was, where it draws
};

}  // namespace zero
