#include "backwards/attention.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "backwards/unwatched.h"

namespace zero {
namespace {

struct Operators {
  static c10::OperatorHandle find(const char* name, const char* overload = "") {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  }
  const c10::OperatorHandle bmm = find("aten::bmm"), view = find("aten::view"), add = find("aten::add_", "Tensor");
};

const Operators& operators() {
  static const Operators all;
  return all;
}

}  // namespace

void AttentionScores::uses(const std::string& parameter) {
  projected_ = projected_ || std::ranges::find(projections_, parameter) != projections_.end();
}

// To see scores by heads, rows and columns is what comes before the mask; another mask is added to them.
void AttentionScores::before(const c10::OperatorHandle& op, std::span<c10::IValue> arguments) {
  if (!scores_.defined() || arguments.empty() || !arguments[0].isTensor() || !arguments[0].toTensor().is_same(scores_))
    return;
  if (op == operators().add) return;
  if (op == operators().view && arguments[1].toListRef().size() == 4) {
    const Unwatched unwatched;
    arguments[0] = scores_.to(at::kFloat);
  }
  scores_.reset();
}

void AttentionScores::after(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!projected_ || op != operators().bmm) return;
  projected_ = false;
  const at::Tensor& product = stack.back().toTensor();
  if (at::isReducedFloatingType(product.scalar_type())) scores_ = product;
}

void AttentionScores::forget() {
  projected_ = false;
  scores_.reset();
}

}  // namespace zero
