#include "planner/tensor_wire.h"

#include <algorithm>

namespace planner {

TensorWire tensor_wire(const MicroBatch& work, int ranks) {
  if (ranks == 1) return {};
  const models::LlamaConfig& config = work.config;
  const std::int64_t tokens = work.batch * work.seq, size = work.precision == zero::Precision::fp32 ? 4 : 2;
  const auto forward = static_cast<int>(2 * config.num_hidden_layers + 1);
  const bool again = config.activations.recompute == models::Recompute::layers;
  const int hidden = 2 * forward + (again ? forward - 1 : 0);
  // Pieces are computed again, but for the sum of the gradient.
  const auto pieces = static_cast<int>(std::min(config.activations.loss_pieces, tokens));
  const int sums = pieces > 1 ? 5 : 3, gathers = pieces > 1 ? 2 : 1;
  const std::int64_t wide = tokens * 4, summed = hidden * tokens * config.hidden_size * size + sums * wide;
  return {2 * (ranks - 1) * summed / ranks + (ranks - 1) * gathers * wide,
          hidden + pieces - 1 + pieces * (sums + gathers)};
}

}  // namespace planner
