// The cells that LibTorch's LSTM and GRU ask of an accelerator, from operators that autograd knows. `gates` are without
// their biases.
#include <ATen/core/Tensor.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <torch/library.h>

namespace zero::test::accelerator {
namespace {

using at::Tensor;
using Bias = std::optional<Tensor>;

Tensor biased(const Tensor& gates, const Bias& bias) {
  return bias && bias->defined() ? gates.add(*bias) : gates;
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cell,
                                             const Bias& input_bias, const Bias& hidden_bias) {
  const Tensor gates = biased(hidden_gates, hidden_bias).add(biased(input_gates, input_bias));
  const std::vector<Tensor> parts = gates.chunk(4, 1);
  const Tensor next = parts[1].sigmoid().mul(cell).add(parts[0].sigmoid().mul(parts[2].tanh()));
  return {parts[3].sigmoid().mul(next.tanh()), next, gates};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hidden,
                                    const Bias& input_bias, const Bias& hidden_bias) {
  const Tensor gates = biased(input_gates, input_bias);
  const std::vector<Tensor> from_input = gates.chunk(3, 1);
  const std::vector<Tensor> from_hidden = biased(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = from_hidden[0].add(from_input[0]).sigmoid();
  const Tensor update = from_hidden[1].add(from_input[1]).sigmoid();
  const Tensor fresh = from_input[2].add(from_hidden[2].mul(reset)).tanh();
  return {hidden.sub(fresh).mul(update).add(fresh), gates};
}

void add_cells(torch::Library& library) {
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  add_cells(library);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  add_cells(library);
}

}  // namespace
}  // namespace zero::test::accelerator
