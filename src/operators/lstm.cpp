#include "operators/lstm.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include "backwards/autocast.h"
#include "backwards/unwatched.h"

namespace zero {
namespace {

// The library says that it cannot only when it is asked to.
bool runs_on_cpu(at::ScalarType dtype) {
  const Unwatched unwatched;
  const at::NoGradGuard no_grad;
  const AutocastScope autocast(Cast{at::kCPU, dtype});
  const at::Tensor one = at::zeros({1, 1, 1}), weight = at::zeros({4, 1}), bias = at::zeros({4});
  try {
    at::lstm(one, {one, one}, {weight, weight, bias, bias}, true, 1, 0.0, false, false, false);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

bool is_lstm(const c10::OperatorHandle& op) {
  static const c10::OperatorHandle input = c10::Dispatcher::singleton().findSchemaOrThrow("aten::lstm", "input");
  static const c10::OperatorHandle data = c10::Dispatcher::singleton().findSchemaOrThrow("aten::lstm", "data");
  return op == input || op == data;
}

bool has_lstm(const Cast& cast) {
  if (cast.device != at::kCPU) return true;
  static const bool bf16 = runs_on_cpu(at::kBFloat16), f16 = runs_on_cpu(at::kHalf);
  return cast.dtype == at::kHalf ? f16 : bf16;
}

}  // namespace zero
