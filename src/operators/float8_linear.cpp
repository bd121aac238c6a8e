#include "operators/float8_linear.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "operators/operator_rule.h"
#include "zero/error.h"

namespace zero {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor plain(const at::Tensor& tensor) {
  const bool known = tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16;
  return (known ? tensor : tensor.to(at::kFloat)).contiguous();
}

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& matrix,
                            const std::optional<at::Tensor>& bias, const c10::intrusive_ptr<Float8Linears>& linears,
                            std::int64_t parameter, bool training) {
    const at::Tensor rows = plain(x).reshape({-1, matrix.size(0)});
    const Float8Matrix input =
        linears->cast(static_cast<std::size_t>(parameter), Float8Linears::input, rows, /*recorded=*/training);
    const Float8Matrix weight = weight_paged_in(linears->device(), matrix);
    const at::Tensor y = multiply({input}, {weight}, bias);
    if (training) {
      context->save_for_backward({input.codes(), input.scale(), matrix});
      context->saved_data["linears"] = c10::IValue::make_capsule(linears);
      context->saved_data["parameter"] = parameter;
      context->saved_data["sizes"] = x.sizes();
      context->saved_data["dtype"] = static_cast<std::int64_t>(x.scalar_type());
      context->saved_data["bias"] = bias ? static_cast<std::int64_t>(bias->scalar_type()) : -1;
    }
    std::vector<std::int64_t> sizes = x.sizes().vec();
    sizes.back() = matrix.size(1);
    return at::_unsafe_view(y, sizes);  // models add biases to it in place
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    if (at::GradMode::is_enabled())
      throw StateError("products in FP8 have no second derivative", "leave the layer out by Options::float8.takes");
    auto& saved = context->saved_data;
    const variable_list tensors = context->get_saved_variables();
    const at::Tensor& matrix = tensors[2];
    const auto linears = c10::static_intrusive_pointer_cast<Float8Linears>(saved["linears"].toCapsule());
    const at::Tensor g = plain(outputs[0]).reshape({-1, matrix.size(1)});
    const Float8Matrix gradient = linears->cast(static_cast<std::size_t>(saved["parameter"].toInt()),
                                                Float8Linears::gradient, g, /*recorded=*/true);
    variable_list result(6);
    if (context->needs_input_grad(0)) {
      const Float8Matrix weight = weight_paged_in(linears->device(), matrix);
      const at::Tensor dx = multiply({gradient}, {weight, /*transposed=*/true});
      result[0] = dx.view(saved["sizes"].toIntVector()).to(static_cast<at::ScalarType>(saved["dtype"].toInt()));
    }
    if (context->needs_input_grad(1)) {
      const Float8Matrix input(linears->device(), Float8Format::e4m3, tensors[0], tensors[1]);
      // In the order of the parameter's memory.
      const bool transposed = matrix.stride(0) == 1;
      const at::Tensor dw = transposed ? multiply({gradient, true}, {input}).t() : multiply({input, true}, {gradient});
      result[1] = dw.to(matrix.scalar_type());
    }
    const std::int64_t bias = saved["bias"].toInt();
    if (bias >= 0 && context->needs_input_grad(2))
      result[2] = g.sum(0, /*keepdim=*/false, at::kFloat).to(static_cast<at::ScalarType>(bias));
    return result;
  }

 private:
  static Float8Matrix weight_paged_in(Device& device, const at::Tensor& matrix) {
    if (Unit* unit = Unit::of(matrix.unsafeGetTensorImpl())) unit->owner->page_in(std::span(&unit, 1));
    return {device, Float8Format::e4m3, matrix};
  }
};

// The operators that linear layers come as: an input, a matrix [in, out], and a bias or none.
struct Operands {
  at::Tensor x, matrix;
  std::optional<at::Tensor> bias = {};
  bool transposed = false;  // the matrix is [out, in]
};

constexpr auto kProducts =
    std::to_array<OperatorName>({{"aten::linear"}, {"aten::matmul"}, {"aten::mm"}, {"aten::addmm"}});

std::optional<Operands> operands_of(const OperatorCall& call) {
  const auto tensor = [&](std::size_t i) {
    return call.arguments[i].isTensor() ? call.arguments[i].toTensor() : at::Tensor();
  };
  const std::string_view name = call.op.operator_name().name;
  if (name == "aten::linear") {
    const at::Tensor bias = tensor(2);
    return Operands{tensor(0), tensor(1), bias.defined() ? std::optional(bias) : std::nullopt, /*transposed=*/true};
  }
  if (name != "aten::addmm") return Operands{tensor(0), tensor(1)};
  const bool plain_sum = call.arguments[3].toScalar().equal(1) && call.arguments[4].toScalar().equal(1);
  if (plain_sum && tensor(0).dim() <= 1) return Operands{tensor(1), tensor(2), tensor(0)};
  return {};
}

// The engine's recipe whose product it may be.
c10::intrusive_ptr<Float8Linears> recipe_of(const Operands& operands) {
  if (!operands.matrix.defined() || operands.matrix.dim() != 2) return {};
  if (operands.x.device() != operands.matrix.device()) return {};  // LibTorch says what is wrong
  const Unit* unit = Unit::of(operands.matrix.unsafeGetTensorImpl());
  return unit == nullptr ? nullptr : unit->owner->float8();
}

// Products with a taken parameter.
void multiply_in_float8(OperatorCall& call) {
  const std::optional<Operands> operands = operands_of(call);
  const auto linears = operands ? recipe_of(*operands) : nullptr;
  const auto parameter = linears ? linears->find(operands->matrix) : std::nullopt;
  if (parameter) {
    linears->use(*parameter);
    call.instead = [&](torch::jit::Stack* stack) {
      const at::Tensor matrix = operands->transposed ? operands->matrix.t() : operands->matrix;
      const at::Tensor y = Product::apply(operands->x, matrix, operands->bias, linears,
                                          static_cast<std::int64_t>(*parameter), at::GradMode::is_enabled());
      torch::jit::drop(*stack, call.arguments.size());
      torch::jit::push(*stack, y);
    };
  }
  call.proceed();
}

}  // namespace

Float8Linears::Float8Linears(const Float8& recipe, std::vector<char> taken, Device& device,
                             std::shared_ptr<float> noted)
    : device_(device),
      delayed_(recipe.scaling == Scaling::delayed),
      history_(static_cast<std::size_t>(recipe.history)),
      taken_(std::move(taken)),
      used_(taken_.size()),
      noted_(std::move(noted)),
      histories_(2 * taken_.size()) {}

void Float8Linears::settle(const std::vector<double>& largest) {
  for (std::size_t i = 0; i < histories_.size(); ++i) {
    const bool seen = std::isfinite(largest[i]) && largest[i] > 0;
    if (!taken_[i / 2] || !seen) continue;
    histories_[i].push_back(i % 2 == gradient ? largest[i] / loss_scale_ : largest[i]);
    if (histories_[i].size() > history_) histories_[i].pop_front();
  }
}

StateScalars::Float8History Float8Linears::history(int parameter) const {
  const auto of = [&](Role role) {
    const auto& history = histories_[2 * static_cast<std::size_t>(parameter) + role];
    return std::vector<double>(history.begin(), history.end());
  };
  return {of(input), of(gradient)};
}

void Float8Linears::resume(int parameter, const StateScalars::Float8History& history) {
  const auto take = [&](Role role, const std::vector<double>& values) {
    const auto kept = static_cast<std::ptrdiff_t>(std::min(values.size(), history_));
    histories_[2 * static_cast<std::size_t>(parameter) + role].assign(values.end() - kept, values.end());
  };
  take(input, history.inputs);
  take(gradient, history.gradients);
}

bool Float8Linears::missed(int parameter) const {
  const auto i = static_cast<std::size_t>(parameter);
  return taken_[i] && !used_[i];
}

Float8Matrix Float8Linears::cast(std::size_t parameter, Role role, const at::Tensor& matrix, bool recorded) const {
  const std::size_t i = 2 * parameter + role;
  const Float8Format format = role == input ? Float8Format::e4m3 : Float8Format::e5m2;
  const auto& history = histories_[i];
  const double largest = history.empty() ? 0 : *std::max_element(history.begin(), history.end());
  const float given = delayed_ && largest > 0 ? float8::scale_into(float8::largest_of(format),
                                                                   largest * (role == gradient ? loss_scale_ : 1))
                                              : 0;
  return {device_, format, matrix, given, recorded ? noted_.get() + i : nullptr};
}

std::optional<std::size_t> Float8Linears::find(const at::Tensor& matrix) const {
  const Unit* unit = Unit::of(matrix.unsafeGetTensorImpl());
  const Slot& slot = unit->slot_of(matrix);
  const auto parameter = static_cast<std::size_t>(slot.index);
  const bool whole = matrix.storage_offset() == 0 && slot.numel == matrix.numel();
  return whole && taken_[parameter] && matrix.is_non_overlapping_and_dense() ? std::optional(parameter) : std::nullopt;
}

constexpr OperatorRule operator_rules::float8{kProducts, OperatorRule::with_units, multiply_in_float8};

}  // namespace zero
