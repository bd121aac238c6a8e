// Products with the weights that a Float8 recipe takes: y = x W^T with x and W in E4M3 and the gradient of y in E5M2,
// each scaled by a power of two, summed in fp32 (bf16 holds both formats exactly, so a bf16 product computes them), and
// rounded to bf16 once. Of the input its codes are kept for backward; the weight is cast again there.
//
// Thread-safety: the thread that runs forward and backward.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "state/unit.h"
#include "zero/float8.h"
#include "zero/state.h"

namespace c10 {
class OperatorHandle;
}

namespace zero {

class Float8Linears final : public torch::CustomClassHolder {
 public:
  // `taken` by parameter.
  Float8Linears(const Float8& recipe, std::vector<char> taken);

  // The largest magnitudes of this step's inputs and gradients, two a parameter, and what all ranks' come to: then the
  // next step begins.
  const std::vector<double>& largest() const { return largest_; }
  void settle(const std::vector<double>& largest);
  void forget();
  // The next step's: recorded gradients are kept without it.
  void set_loss_scale(double scale) { loss_scale_ = scale; }
  bool takes(int parameter) const { return taken_[static_cast<std::size_t>(parameter)] != 0; }
  // The largest magnitudes by which the next steps' scales are chosen. Of others' the newest are taken, as many as are
  // kept here.
  StateScalars::Float8History history(int parameter) const;
  void resume(int parameter, const StateScalars::Float8History& history);
  // Whether a product with the parameter was ever computed, where it is taken.
  bool missed(int parameter) const;

  enum Role : std::size_t { input, gradient };
  // By which a tensor whose largest magnitude is `largest` is multiplied; NaN where that is not finite.
  float scale(std::size_t parameter, Role role, float largest, bool recorded);

  std::optional<std::size_t> find(const at::Tensor& matrix) const;
  void use(std::size_t parameter) { used_[parameter] = 1; }

 private:
  bool delayed_;
  std::size_t history_;
  double loss_scale_ = 1;
  std::vector<char> taken_, used_;
  std::vector<double> largest_;                // by parameter and role
  std::vector<std::deque<double>> histories_;  // likewise
};

// True when the operator is a product with a taken parameter, paged in: its result is on the stack instead of its
// arguments.
bool run_in_float8(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace zero
