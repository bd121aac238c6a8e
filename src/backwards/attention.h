// torch::nn::MultiheadAttention with a key padding mask, in 16 bits. LibTorch's functional asks for a value of its
// scores' dtype in a way that knows fp32 and fp64 only. There the scores become fp32, between their product and the
// mask; those of attentions without such a mask stay as they are.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace c10 {
class OperatorHandle;
}

namespace zero {

class AttentionScores {
 public:
  AttentionScores() = default;
  // `projections`: the names of the parameters that inputs are projected by.
  explicit AttentionScores(std::vector<std::string> projections) : projections_(std::move(projections)) {}

  bool any() const { return !projections_.empty(); }
  // An operator with this parameter among its arguments is about to run.
  void uses(const std::string& parameter);
  // Any operator, before it runs and when it has.
  void before(const c10::OperatorHandle& op, std::span<c10::IValue> arguments);
  void after(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void forget();

 private:
  std::vector<std::string> projections_;
  bool projected_ = false;
  at::Tensor scores_;  // until they are used
};

}  // namespace zero
