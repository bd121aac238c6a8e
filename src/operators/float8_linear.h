// Products with the weights that a Float8 recipe takes: y = x W^T with x and W in E4M3 and the gradient of y in E5M2,
// each scaled by a power of two. Of the input its codes are kept for backward; the weight is cast again there.
//
// Thread-safety: the thread that runs forward and backward.
#pragma once

#include <ATen/core/ivalue.h>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "operators/float8_product.h"
#include "units/unit.h"
#include "zero/float8.h"
#include "zero/state.h"

namespace zero {

class Float8Linears final : public torch::CustomClassHolder {
 public:
  // `taken` by parameter. `noted`: of the device, where the largest magnitudes of a step's inputs and gradients are
  // kept, two a parameter.
  Float8Linears(const Float8& recipe, std::vector<char> taken, Device& device, std::shared_ptr<float> noted);

  Device& device() const { return device_; }
  // What those of all ranks come to, at the end of a step.
  void settle(const std::vector<double>& largest);
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
  // A matrix in fp32 or bf16.
  Float8Matrix cast(std::size_t parameter, Role role, const at::Tensor& matrix, bool recorded) const;

  std::optional<std::size_t> find(const at::Tensor& matrix) const;
  void use(std::size_t parameter) { used_[parameter] = 1; }

 private:
  Device& device_;
  bool delayed_;
  std::size_t history_;
  double loss_scale_ = 1;
  std::vector<char> taken_, used_;
  std::shared_ptr<float> noted_;               // by parameter and role
  std::vector<std::deque<double>> histories_;  // likewise
};

}  // namespace zero
