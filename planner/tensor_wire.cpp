#include "planner/tensor_wire.h"

namespace planner {

TensorWire tensor_wire(const MicroBatch& work, int ranks) {
  if (ranks == 1) return {};
  const models::LlamaConfig& config = work.config;
  const std::int64_t tokens = work.batch * work.seq, size = work.precision == zero::Precision::fp32 ? 4 : 2;
  const auto forward = static_cast<int>(2 * config.num_hidden_layers + 1);
  const bool again = config.activations.recompute == models::Recompute::layers;
  const int hidden = 2 * forward + (again ? forward - 1 : 0), sums = 3;
  const std::int64_t wide = tokens * 4, summed = hidden * tokens * config.hidden_size * size + sums * wide;
  return {2 * (ranks - 1) * summed / ranks + (ranks - 1) * wide, hidden + sums + 1};
}

}  // namespace planner
