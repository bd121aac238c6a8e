// LSTMs and GRUs, and the cells that LibTorch asks of an accelerator, from operators that autograd knows.
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <algorithm>

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

// In place, as LibTorch's on the CPU: its kernels round what is not contiguous in another way.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hidden,
                                    const Bias& input_bias, const Bias& hidden_bias) {
  const Tensor gates = biased(input_gates, input_bias);
  const std::vector<Tensor> from_input = gates.unsafe_chunk(3, 1);
  const std::vector<Tensor> from_hidden = biased(hidden_gates, hidden_bias).unsafe_chunk(3, 1);
  const Tensor reset = from_hidden[0].add_(from_input[0]).sigmoid_();
  const Tensor update = from_hidden[1].add_(from_input[1]).sigmoid_();
  const Tensor fresh = from_input[2].add(from_hidden[2].mul_(reset)).tanh_();
  return {hidden.sub(fresh).mul_(update).add_(fresh), gates};
}

struct State {
  Tensor hidden, cell;
};

struct Weights {
  Tensor input, hidden;
  Bias input_bias, hidden_bias;
  Tensor projection;
};

using Cell = State (*)(const Tensor& from_input, const State& state, const Weights& weights);

State lstm_step(const Tensor& from_input, const State& state, const Weights& weights) {
  const Tensor from_hidden = at::linear(state.hidden, weights.hidden, weights.hidden_bias);
  const auto [hidden, cell, gates] = lstm_cell(from_input, from_hidden, state.cell, {}, {});
  return {weights.projection.defined() ? hidden.matmul(weights.projection.t()) : hidden, cell};
}

State gru_step(const Tensor& from_input, const State& state, const Weights& weights) {
  const Tensor from_hidden = at::linear(state.hidden, weights.hidden, weights.hidden_bias);
  return {std::get<0>(gru_cell(from_input, from_hidden, state.hidden, Bias(), Bias())), state.cell};
}

// The weights of all steps at once, as LibTorch does on the CPU alone: the gradients have its bits.
std::pair<Tensor, State> run_layer(const Tensor& inputs, State state, const Weights& weights, Cell cell, bool reverse) {
  std::vector<Tensor> steps = at::linear(inputs, weights.input, weights.input_bias).unbind(0);
  if (reverse) std::ranges::reverse(steps);
  for (Tensor& step : steps) {
    state = cell(step, state, weights);
    step = state.hidden;
  }
  if (reverse) std::ranges::reverse(steps);
  return {at::stack(steps, 0), state};
}

struct Network {
  Cell cell;
  bool biases, projections, bidirectional;
  std::int64_t layers;
  double dropout;  // between layers
};

Weights weights_of(const Network& network, at::TensorList parameters, std::size_t layer) {
  const std::size_t each = 2 + (network.biases ? 2 : 0) + (network.projections ? 1 : 0);
  const at::TensorList own = parameters.slice(layer * each, each);
  Weights weights{own[0], own[1], {}, {}, network.projections ? own.back() : Tensor()};
  if (network.biases) weights.input_bias = own[2], weights.hidden_bias = own[3];
  return weights;
}

// `cells` may be undefined.
std::tuple<Tensor, Tensor, Tensor> run(const Network& network, Tensor sequence, const Tensor& hidden,
                                       const Tensor& cells, at::TensorList parameters) {
  const std::int64_t directions = network.bidirectional ? 2 : 1;
  const std::vector<Tensor> first_hidden = hidden.unbind(0);
  const std::vector<Tensor> first_cells = cells.defined() ? cells.unbind(0) : std::vector<Tensor>(first_hidden.size());
  std::vector<Tensor> last_hidden, last_cells;
  for (std::int64_t layer = 0; layer < network.layers; ++layer) {
    std::vector<Tensor> outputs;
    for (std::int64_t direction = 0; direction < directions; ++direction) {
      const auto index = static_cast<std::size_t>(layer * directions + direction);
      const auto [output, last] = run_layer(sequence, {first_hidden[index], first_cells[index]},
                                            weights_of(network, parameters, index), network.cell, direction == 1);
      outputs.push_back(output);
      last_hidden.push_back(last.hidden);
      last_cells.push_back(last.cell);
    }
    sequence = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (network.dropout > 0 && layer + 1 < network.layers) sequence = at::dropout(sequence, network.dropout, true);
  }
  return {sequence, at::stack(last_hidden, 0), cells.defined() ? at::stack(last_cells, 0) : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, at::TensorList states, at::TensorList parameters,
                                        bool biases, std::int64_t layers, double dropout, bool train,
                                        bool bidirectional, bool batch_first) {
  const bool projections = states[0].size(2) != states[1].size(2);
  const Network network{lstm_step, biases, projections, bidirectional, layers, train ? dropout : 0};
  auto [output, hidden, cells] =
      run(network, batch_first ? input.transpose(0, 1) : input, states[0], states[1], parameters);
  return {batch_first ? output.transpose(0, 1) : output, hidden, cells};
}

std::tuple<Tensor, Tensor> gru(const Tensor& input, const Tensor& states, at::TensorList parameters, bool biases,
                               std::int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  const Network network{gru_step, biases, false, bidirectional, layers, train ? dropout : 0};
  auto [output, hidden, none] = run(network, batch_first ? input.transpose(0, 1) : input, states, Tensor(), parameters);
  return {batch_first ? output.transpose(0, 1) : output, hidden};
}

void add_all(torch::Library& library) {
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  library.impl("lstm.input", TORCH_FN(lstm));
  library.impl("gru.input", TORCH_FN(gru));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  add_all(library);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  add_all(library);
}

}  // namespace
}  // namespace zero::test::accelerator
