#include "state/float8_linear.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/float8_arrays.h"
#include "partition/vote.h"
#include "zero/error.h"

namespace zero {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Calls use(pointer) with the values of a dense tensor in fp32 or bf16, in the order of memory.
template <class Use>
auto with_values(const at::Tensor& tensor, const Use& use) {
  if (tensor.scalar_type() == at::kFloat) return use(static_cast<const float*>(tensor.const_data_ptr()));
  return use(static_cast<const Bf16*>(tensor.const_data_ptr()));
}

at::Tensor plain(const at::Tensor& tensor) {
  const bool known = tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16;
  return (known ? tensor : tensor.to(at::kFloat)).contiguous();
}

float largest_of(const at::Tensor& dense) {
  return with_values(dense, [&](const auto* values) { return largest_magnitude(values, dense.numel()); });
}

// Codes in the memory order of `dense`.
template <class Format>
at::Tensor codes_of(const at::Tensor& dense, float scale) {
  at::Tensor codes = at::empty_strided(dense.sizes(), dense.strides(), dense.options().dtype(at::kByte));
  auto* const out = static_cast<Format*>(codes.mutable_data_ptr());
  with_values(dense, [&](const auto* values) { narrow(values, scale, out, dense.numel()); });
  return codes;
}

template <class Format>
at::Tensor values_of(const at::Tensor& codes) {
  at::Tensor values = at::empty_strided(codes.sizes(), codes.strides(), codes.options().dtype(at::kBFloat16));
  widen(static_cast<const Format*>(codes.const_data_ptr()), static_cast<Bf16*>(values.mutable_data_ptr()),
        codes.numel());
  return values;
}

// A power of two that brings `largest` below the format's.
float scale_into(double format, double largest) {
  if (!std::isfinite(largest)) return std::numeric_limits<float>::quiet_NaN();
  if (largest == 0) return 1;
  return std::ldexp(1.0F, std::clamp(std::ilogb(format / largest), -40, 40));
}

// A weight as it is multiplied with, and its scale.
struct Weight {
  at::Tensor values;
  float scale;
};

Weight weight_of(const at::Tensor& matrix) {
  const float scale = scale_into(E4m3::kLargest, largest_of(matrix));
  return {values_of<E4m3>(codes_of<E4m3>(matrix, scale)), scale};
}

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& matrix,
                            const std::optional<at::Tensor>& bias, const c10::intrusive_ptr<Float8Linears>& linears,
                            std::int64_t parameter, bool training) {
    const at::Tensor rows = plain(x).reshape({-1, matrix.size(0)});
    const float scale =
        linears->scale(static_cast<std::size_t>(parameter), Float8Linears::input, largest_of(rows), training);
    const at::Tensor codes = codes_of<E4m3>(rows, scale);
    const auto [values, weight_scale] = weight_of(matrix);
    const float product = scale * weight_scale;
    at::Tensor y = values_of<E4m3>(codes);
    y = bias ? at::addmm(bias->to(at::kBFloat16).mul(product), y, values) : at::mm(y, values);
    if (training) {
      context->save_for_backward({codes, matrix});
      context->saved_data["linears"] = c10::IValue::make_capsule(linears);
      context->saved_data["parameter"] = parameter;
      context->saved_data["scale"] = static_cast<double>(scale);
      context->saved_data["sizes"] = x.sizes();
      context->saved_data["dtype"] = static_cast<std::int64_t>(x.scalar_type());
      context->saved_data["bias"] = bias ? static_cast<std::int64_t>(bias->scalar_type()) : -1;
    }
    std::vector<std::int64_t> sizes = x.sizes().vec();
    sizes.back() = matrix.size(1);
    return at::_unsafe_view(y.mul(1 / product), sizes);  // models add biases to it in place
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    if (at::GradMode::is_enabled())
      throw StateError("products in FP8 have no second derivative", "leave the layer out by Options::float8.takes");
    auto& saved = context->saved_data;
    const variable_list tensors = context->get_saved_variables();
    const at::Tensor &codes = tensors[0], &matrix = tensors[1];
    const auto linears = c10::static_intrusive_pointer_cast<Float8Linears>(saved["linears"].toCapsule());
    const at::Tensor g = plain(outputs[0]).reshape({-1, matrix.size(1)});
    const auto scale = static_cast<float>(saved["scale"].toDouble());
    const float g_scale = linears->scale(static_cast<std::size_t>(saved["parameter"].toInt()), Float8Linears::gradient,
                                         largest_of(g), /*recorded=*/true);
    const at::Tensor gq = values_of<E5m2>(codes_of<E5m2>(g, g_scale));
    variable_list result(6);
    if (context->needs_input_grad(0)) {
      const auto [values, weight_scale] = weight_paged_in(matrix);
      const at::Tensor dx = at::mm(gq, values.t()).mul(1 / (g_scale * weight_scale));
      result[0] = dx.view(saved["sizes"].toIntVector()).to(static_cast<at::ScalarType>(saved["dtype"].toInt()));
    }
    if (context->needs_input_grad(1)) {
      const at::Tensor xq = values_of<E4m3>(codes);
      // In the order of the parameter's memory.
      const bool transposed = matrix.stride(0) == 1;
      const at::Tensor dw = transposed ? at::mm(gq.t(), xq).t() : at::mm(xq.t(), gq);
      result[1] = dw.mul(1 / (g_scale * scale)).to(matrix.scalar_type());
    }
    const std::int64_t bias = saved["bias"].toInt();
    if (bias >= 0 && context->needs_input_grad(2))
      result[2] = g.sum(0, /*keepdim=*/false, at::kFloat).to(static_cast<at::ScalarType>(bias));
    return result;
  }

 private:
  static Weight weight_paged_in(const at::Tensor& matrix) {
    if (Unit* unit = Unit::of(matrix.unsafeGetTensorImpl())) unit->owner->page_in(std::span(&unit, 1));
    return weight_of(matrix);
  }
};

// The operators that linear layers come as: an input, a matrix [in, out], and a bias or none.
struct Operands {
  at::Tensor x, matrix;
  std::optional<at::Tensor> bias = {};
};

struct Operators {
  static c10::OperatorHandle find(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }
  const c10::OperatorHandle linear = find("aten::linear"), matmul = find("aten::matmul"), mm = find("aten::mm"),
                            addmm = find("aten::addmm");
};

const Operators& operators() {
  static const Operators all;
  return all;
}

std::optional<Operands> operands_of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  const auto tensor = [&](std::size_t i) { return arguments[i].isTensor() ? arguments[i].toTensor() : at::Tensor(); };
  if (op == operators().linear) {
    const at::Tensor bias = tensor(2);
    return Operands{tensor(0), tensor(1), bias.defined() ? std::optional(bias) : std::nullopt};
  }
  if (op == operators().matmul || op == operators().mm) return Operands{tensor(0), tensor(1)};
  const bool plain_sum =
      op == operators().addmm && arguments[3].toScalar().equal(1) && arguments[4].toScalar().equal(1);
  if (plain_sum && tensor(0).dim() <= 1) return Operands{tensor(1), tensor(2), tensor(0)};
  return {};
}

}  // namespace

Float8Linears::Float8Linears(const Float8& recipe, std::vector<char> taken)
    : delayed_(recipe.scaling == Scaling::delayed),
      history_(static_cast<std::size_t>(recipe.history)),
      taken_(std::move(taken)),
      used_(taken_.size()),
      largest_(2 * taken_.size()),
      histories_(2 * taken_.size()) {}

void Float8Linears::settle(const std::vector<double>& largest) {
  for (std::size_t i = 0; i < histories_.size(); ++i) {
    const bool seen = std::isfinite(largest[i]) && largest[i] > 0;
    if (!taken_[i / 2] || !seen) continue;
    histories_[i].push_back(i % 2 == gradient ? largest[i] / loss_scale_ : largest[i]);
    if (histories_[i].size() > history_) histories_[i].pop_front();
  }
  forget();
}

void Float8Linears::forget() {
  std::fill(largest_.begin(), largest_.end(), 0);
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

float Float8Linears::scale(std::size_t parameter, Role role, float largest, bool recorded) {
  const std::size_t i = 2 * parameter + role;
  if (recorded) note_largest(largest_[i], largest);
  const double format = role == input ? double{E4m3::kLargest} : double{E5m2::kLargest};
  const auto& history = histories_[i];
  if (!delayed_ || history.empty() || !std::isfinite(largest)) return scale_into(format, largest);
  return scale_into(format, *std::max_element(history.begin(), history.end()) * (role == gradient ? loss_scale_ : 1));
}

std::optional<std::size_t> Float8Linears::find(const at::Tensor& matrix) const {
  const Unit* unit = Unit::of(matrix.unsafeGetTensorImpl());
  for (const Slot& slot : unit->layout().slots()) {
    const auto parameter = static_cast<std::size_t>(slot.index);
    const bool whole = slot.begin == matrix.storage_offset() && slot.numel == matrix.numel();
    if (whole && taken_[parameter] && matrix.is_non_overlapping_and_dense()) return parameter;
  }
  return {};
}

bool run_in_float8(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const auto operands = operands_of(op, std::span(stack->data() + (stack->size() - count), count));
  if (!operands || !operands->matrix.defined() || operands->matrix.dim() != 2) return false;
  const Unit* unit = Unit::of(operands->matrix.unsafeGetTensorImpl());
  if (unit == nullptr || unit->owner->float8() == nullptr) return false;
  const c10::intrusive_ptr<Float8Linears>& linears = unit->owner->float8();
  const auto parameter = linears->find(operands->matrix);
  if (!parameter) return false;
  linears->use(*parameter);
  const at::Tensor matrix = op == operators().linear ? operands->matrix.t() : operands->matrix;
  const at::Tensor y = Product::apply(operands->x, matrix, operands->bias, linears,
                                      static_cast<std::int64_t>(*parameter), at::GradMode::is_enabled());
  torch::jit::drop(*stack, count);
  torch::jit::push(*stack, y);
  return true;
}

}  // namespace zero
