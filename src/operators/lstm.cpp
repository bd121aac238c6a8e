// LSTMs in 16 bits. oneDNN has none for processors without AVX-512, and under autocast LibTorch asks it all the same;
// its own, in 16 bits, take some twenty times as long. There an LSTM is computed in fp32, and its results are rounded.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "backwards/unwatched.h"
#include "operators/operator_rule.h"

namespace zero {
namespace {

constexpr auto kLstms = std::to_array<OperatorName>({{"aten::lstm", "input"}, {"aten::lstm", "data"}});

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

// Whether there is an LSTM in this dtype, bf16 or fp16: on the CPU, whether oneDNN has one for this processor.
bool has_lstm(const Cast& cast) {
  if (cast.device != at::kCPU) return true;
  static const bool bf16 = runs_on_cpu(at::kBFloat16), f16 = runs_on_cpu(at::kHalf);
  return cast.dtype == at::kHalf ? f16 : bf16;
}

void run_lstm(OperatorCall& call) {
  if (!call.autocast) return call.proceed();
  const Cast cast = *call.autocast;
  if (has_lstm(cast)) {
    narrow(call.arguments, cast.dtype);
    return call.proceed();
  }
  call.compute_in_fp32();
  call.proceed();
  narrow(call.results(), cast.dtype);
}

}  // namespace

constexpr OperatorRule operator_rules::lstm{kLstms, OperatorRule::with_units, run_lstm};

}  // namespace zero
