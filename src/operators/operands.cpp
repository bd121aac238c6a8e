#include "operators/operands.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <string>
#include <string_view>
#include <unordered_set>

#include "backwards/autocast.h"
#include "backwards/unwatched.h"

namespace zero {
namespace {

constexpr auto kOnlyWide = std::to_array<std::string_view>({
    "aten::binary_cross_entropy",
    "aten::cholesky",
    "aten::cholesky_inverse",
    "aten::cholesky_solve",
    "aten::det",
    "aten::geqrf",
    "aten::inverse",
    "aten::linalg_cholesky",
    "aten::linalg_cholesky_ex",
    "aten::linalg_cond",
    "aten::linalg_det",
    "aten::linalg_eig",
    "aten::linalg_eigh",
    "aten::linalg_eigvals",
    "aten::linalg_eigvalsh",
    "aten::linalg_householder_product",
    "aten::linalg_inv",
    "aten::linalg_inv_ex",
    "aten::linalg_ldl_factor",
    "aten::linalg_ldl_factor_ex",
    "aten::linalg_ldl_solve",
    "aten::linalg_lstsq",
    "aten::linalg_lu",
    "aten::linalg_lu_factor",
    "aten::linalg_lu_factor_ex",
    "aten::linalg_lu_solve",
    "aten::linalg_matrix_exp",
    "aten::linalg_matrix_rank",
    "aten::linalg_pinv",
    "aten::linalg_qr",
    "aten::linalg_slogdet",
    "aten::linalg_solve",
    "aten::linalg_solve_ex",
    "aten::linalg_solve_triangular",
    "aten::linalg_svd",
    "aten::linalg_svdvals",
    "aten::linalg_tensorinv",
    "aten::linalg_tensorsolve",
    "aten::logdet",
    "aten::lu_solve",
    "aten::matrix_exp",
    "aten::orgqr",
    "aten::ormqr",
    "aten::pinverse",
    "aten::qr",
    "aten::slogdet",
    "aten::svd",
    "aten::triangular_solve",
});

bool floating(const c10::TensorImpl* tensor) {
  const auto type = c10::typeMetaToScalarType(tensor->dtype());
  return type == at::kFloat || type == at::kDouble;
}

// Pointwise operators promote their arguments themselves, but for this one.
bool promotes(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return op.hasTag(at::Tag::pointwise) && name != "aten::lerp" && name != "aten::lerp_";
}

// Of one of its tensors.
bool takes_dtype(const c10::OperatorHandle& op) {
  static const c10::OperatorHandle to = c10::Dispatcher::singleton().findSchemaOrThrow("aten::to", "other"),
                                   type_as = c10::Dispatcher::singleton().findSchemaOrThrow("aten::type_as", "");
  return op == to || op == type_as;
}

// Rewrites the tensors of a value, alone or in a list.
template <typename Change>
void rewrite(c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& item : value.toTensorVector()) list.push_back(change(item));
    value = std::move(list);
  }
}

at::Tensor widened(const at::Tensor& tensor) {
  const bool narrow = tensor.defined() && at::isReducedFloatingType(tensor.scalar_type()) &&
                      Unit::of(tensor.unsafeGetTensorImpl()) != nullptr;
  return narrow ? tensor.to(at::kFloat) : tensor;
}

}  // namespace

UnitSet::UnitSet(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& value : arguments)
    for_each_tensor(value, [&](const c10::TensorImpl* tensor) {
      Unit* const unit = Unit::of(tensor);
      if (unit == nullptr) {
        others_ = others_ || (tensor != c10::UndefinedTensorImpl::singleton() && tensor->dim() > 0);
        return;
      }
      add(unit);
      frozen_ = frozen_ || (!tensor->requires_grad() && unit->frozen(tensor));
    });
}

void UnitSet::add(Unit* unit) {
  for (std::size_t i = 0; i < count_; ++i)
    if (few_[i] == unit) return;
  if (count_ < few_.size()) {
    few_[count_++] = unit;
  } else if (std::find(many_.begin(), many_.end(), unit) == many_.end()) {
    many_.push_back(unit);
  }
}

std::vector<Unit*> UnitSet::all() const {
  std::vector<Unit*> units(few_.begin(), few_.begin() + static_cast<std::ptrdiff_t>(count_));
  units.insert(units.end(), many_.begin(), many_.end());
  return units;
}

bool UnitSet::wide() const {
  const auto wide = [](const Unit* unit) { return unit->layout().dtype() == Dtype::f32; };
  return std::any_of(few_.begin(), few_.begin() + static_cast<std::ptrdiff_t>(count_), wide) ||
         std::ranges::any_of(many_, wide);
}

bool only_wide(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  static const c10::OperatorHandle encoder_layer =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_transformer_encoder_layer_fwd", "");
  if (op == encoder_layer) return arguments[0].toTensor().is_nested();
  static const std::unordered_set<c10::OperatorHandle> all = [] {
    std::unordered_set<c10::OperatorHandle> found;
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames())
      if (std::ranges::find(kOnlyWide, name.name) != kOnlyWide.end())
        if (const auto handle = dispatcher.findSchema(name)) found.insert(*handle);
    return found;
  }();
  return all.contains(op);
}

bool has_unit(const c10::IValue& value) {
  bool found = false;
  for_each_tensor(value, [&](const c10::TensorImpl* tensor) { found = found || Unit::of(tensor) != nullptr; });
  return found;
}

bool needs_promotion(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments, const Cast& cast) {
  if (promotes(op) || op.hasKernelForDispatchKey(cast.key())) return false;
  bool wide = false;
  for (const c10::IValue& value : arguments)
    for_each_tensor(value, [&](const c10::TensorImpl* tensor) {
      wide = wide || (Unit::of(tensor) == nullptr && tensor->dim() > 0 && floating(tensor));
    });
  return wide;
}

void promote(const c10::OperatorHandle& op, std::span<c10::IValue> arguments) {
  // Not to be paged once more, one by one: that could release one operand's unit for another's.
  const Unwatched unwatched;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = op.schema().arguments()[i].alias_info();
    if (!has_unit(arguments[i]) || (alias != nullptr && alias->isWrite())) continue;
    rewrite(arguments[i], widened);
  }
}

void narrow(std::span<c10::IValue> values, at::ScalarType dtype) {
  const Unwatched unwatched;
  for (c10::IValue& value : values)
    rewrite(value, [&](const at::Tensor& tensor) {
      return tensor.defined() && tensor.scalar_type() == at::kFloat ? tensor.to(dtype) : tensor;
    });
}

void widen(const c10::OperatorHandle& op, std::span<c10::IValue> arguments) {
  if (takes_dtype(op)) return;
  const Unwatched unwatched;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = op.schema().arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) continue;
    rewrite(arguments[i], [](const at::Tensor& tensor) {
      return tensor.defined() && at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
    });
  }
}

}  // namespace zero
