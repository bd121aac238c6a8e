// In which dtypes an operator computes in a forward in 16 bits.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <utility>

#include "backwards/micro_batch.h"
#include "backwards/unwatched.h"
#include "operators/operator_rule.h"

namespace zero {
namespace {

const c10::OperatorHandle& encoder_layer() {
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_transformer_encoder_layer_fwd", "");
  return op;
}

// What LibTorch has in fp32 alone, or refuses under autocast, which does not compute it in fp32 on all kinds of
// devices: linear algebra but for products, binary cross entropy of probabilities, and an encoder's layer of sequences
// that are padded (nested tensors).
constexpr auto kOnlyFp32 = std::to_array<OperatorName>({
    {"aten::_transformer_encoder_layer_fwd"},
    {"aten::binary_cross_entropy", OperatorName::kAny},
    {"aten::cholesky", OperatorName::kAny},
    {"aten::cholesky_inverse", OperatorName::kAny},
    {"aten::cholesky_solve", OperatorName::kAny},
    {"aten::det", OperatorName::kAny},
    {"aten::geqrf", OperatorName::kAny},
    {"aten::inverse", OperatorName::kAny},
    {"aten::linalg_cholesky", OperatorName::kAny},
    {"aten::linalg_cholesky_ex", OperatorName::kAny},
    {"aten::linalg_cond", OperatorName::kAny},
    {"aten::linalg_det", OperatorName::kAny},
    {"aten::linalg_eig", OperatorName::kAny},
    {"aten::linalg_eigh", OperatorName::kAny},
    {"aten::linalg_eigvals", OperatorName::kAny},
    {"aten::linalg_eigvalsh", OperatorName::kAny},
    {"aten::linalg_householder_product", OperatorName::kAny},
    {"aten::linalg_inv", OperatorName::kAny},
    {"aten::linalg_inv_ex", OperatorName::kAny},
    {"aten::linalg_ldl_factor", OperatorName::kAny},
    {"aten::linalg_ldl_factor_ex", OperatorName::kAny},
    {"aten::linalg_ldl_solve", OperatorName::kAny},
    {"aten::linalg_lstsq", OperatorName::kAny},
    {"aten::linalg_lu", OperatorName::kAny},
    {"aten::linalg_lu_factor", OperatorName::kAny},
    {"aten::linalg_lu_factor_ex", OperatorName::kAny},
    {"aten::linalg_lu_solve", OperatorName::kAny},
    {"aten::linalg_matrix_exp", OperatorName::kAny},
    {"aten::linalg_matrix_rank", OperatorName::kAny},
    {"aten::linalg_pinv", OperatorName::kAny},
    {"aten::linalg_qr", OperatorName::kAny},
    {"aten::linalg_slogdet", OperatorName::kAny},
    {"aten::linalg_solve", OperatorName::kAny},
    {"aten::linalg_solve_ex", OperatorName::kAny},
    {"aten::linalg_solve_triangular", OperatorName::kAny},
    {"aten::linalg_svd", OperatorName::kAny},
    {"aten::linalg_svdvals", OperatorName::kAny},
    {"aten::linalg_tensorinv", OperatorName::kAny},
    {"aten::linalg_tensorsolve", OperatorName::kAny},
    {"aten::logdet", OperatorName::kAny},
    {"aten::lu_solve", OperatorName::kAny},
    {"aten::matrix_exp", OperatorName::kAny},
    {"aten::orgqr", OperatorName::kAny},
    {"aten::ormqr", OperatorName::kAny},
    {"aten::pinverse", OperatorName::kAny},
    {"aten::qr", OperatorName::kAny},
    {"aten::slogdet", OperatorName::kAny},
    {"aten::svd", OperatorName::kAny},
    {"aten::triangular_solve", OperatorName::kAny},
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

// Whether it takes the dtype of one of its tensors.
bool takes_dtype(const c10::OperatorHandle& op) {
  static const c10::OperatorHandle to = c10::Dispatcher::singleton().findSchemaOrThrow("aten::to", "other"),
                                   type_as = c10::Dispatcher::singleton().findSchemaOrThrow("aten::type_as", "");
  return op == to || op == type_as;
}

bool needs_promotion(const OperatorCall& call) {
  if (promotes(call.op) || call.op.hasKernelForDispatchKey(call.autocast->key())) return false;
  bool wide = false;
  for (const c10::IValue& value : call.arguments)
    for_each_tensor(value, [&](const c10::TensorImpl* tensor) {
      wide = wide || (Unit::of(tensor) == nullptr && tensor->dim() > 0 && floating(tensor));
    });
  return wide;
}

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.defined() && at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

at::Tensor widened_if_of_unit(const at::Tensor& tensor) {
  return Unit::of(tensor.unsafeGetTensorImpl()) == nullptr ? tensor : widened(tensor);
}

// Not to be paged once more, one by one: that could release one operand's unit for another's.
template <typename Change>
void change_what_is_read(const OperatorCall& call, const Change& change) {
  const Unwatched unwatched;
  for (std::size_t i = 0; i < call.arguments.size(); ++i)
    if (!writes(call.op, i)) rewrite(call.arguments[i], change);
}

void choose_cast(OperatorCall& call) {
  const MicroBatch* const computing = MicroBatch::computing();
  if (computing != nullptr && call.takes_values && !call.within_cast)
    call.autocast = computing->autocast(!call.units.empty());
  if (call.autocast && call.units.wide()) call.compute_in_fp32();
  call.proceed();
}

void run_only_in_fp32(OperatorCall& call) {
  const bool has_16_bits = call.op == encoder_layer() && !call.arguments[0].toTensor().is_nested();
  if (call.autocast && !has_16_bits) call.compute_in_fp32();
  call.proceed();
}

// Operators that neither promote their arguments nor are cast by autocast (norms, say) get their 16-bit parameters in
// fp32 when something else among the arguments is fp32 or fp64.
void promote(OperatorCall& call) {
  if (call.autocast && needs_promotion(call)) change_what_is_read(call, widened_if_of_unit);
  call.proceed();
}

}  // namespace

void OperatorCall::compute_in_fp32() {
  fp32 = std::exchange(autocast, std::nullopt);
  if (!takes_dtype(op)) change_what_is_read(*this, widened);
}

constexpr OperatorRule operator_rules::autocast{.when = OperatorRule::in_16_bits, .around = choose_cast};
constexpr OperatorRule operator_rules::only_fp32{kOnlyFp32, OperatorRule::in_16_bits, run_only_in_fp32};
constexpr OperatorRule operator_rules::promotion{.when = OperatorRule::with_units, .around = promote};

}  // namespace zero
