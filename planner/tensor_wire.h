// What the ranks of a tensor axis tell each other: tensor parallelism (Megatron-LM, section 3). No torch.
#pragma once

#include <cstdint>

#include "planner/llama_step.h"

namespace planner {

// Received by a rank in a micro-batch, and in so many operations.
struct TensorWire {
  std::int64_t bytes = 0;
  int calls = 0;
  TensorWire times(int micro_batches) const { return {micro_batches * bytes, micro_batches * calls}; }
};

// `work` is of the part of models::Llama that each of `ranks` has. Sums of all hidden states: of each layer two forward
// and two backward, of the embedding, and of what the head gives back; a sum of b bytes is 2 (T - 1) / T b on the wire.
// Beside them, of each token in fp32, the largest logit of each rank's, and three sums for the loss; where that is
// computed again in pieces, twice as much but for one sum.
TensorWire tensor_wire(const MicroBatch& work, int ranks);

}  // namespace planner
