// Bytes that the operators of a model hold in one micro-batch: activations, their gradients, and what lives for a
// moment only. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "planner/llama_step.h"

namespace planner {

struct Activations {
  std::int64_t bytes = 0;  // largest sum alive at once
  std::string moment;      // when
  // Largest sums once gradients are complete of what lies behind the layers, of a layer, of the embedding.
  std::int64_t in_backward = 0, in_layers = 0, in_embedding = 0;
  std::int64_t layers = 0;
};

// By going through the micro-batch operator by operator: see llama_step.h. As LibTorch 2.13 on a CPU holds them, with
// one thread an operator; never less but for FP8, whose linear layers keep codes beside. Within the budget, where there
// is one, whether it can be met or not: see recomputation.h.
Activations activations(const MicroBatch& work);

// Of what is there without one.
std::int64_t in_bytes(const zero::ActivationBudget& budget, std::int64_t all);

}  // namespace planner
