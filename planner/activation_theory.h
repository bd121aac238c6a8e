// What published formulas say that a transformer's activations take in 16 bits: for comparison, beside what is computed
// operator by operator. No torch.
#pragma once

#include <cstdint>

namespace planner {

// Korthikanti et al., 2022, "Reducing Activation Recomputation in Large Transformer Models", sections 4 and 5.
struct Transformer {
  double heads = 0;   // a
  double hidden = 0;  // h
  double layers = 1;  // L
  double seq = 0;     // s
  double batch = 1;   // b, sequences of a micro-batch
};
enum class Recompute : std::uint8_t { none, selective, full };
// Bytes of activations of one layer on one of `tensor_parallel` ranks (table 2): s b h (34 + 5 a s / h), with scores of
// attention and masks of dropout; without the scores; the layer's input alone, which every rank has whole.
double layer_activations(const Transformer& model, int tensor_parallel, bool sequence_parallel, Recompute recompute);

// Rajbhandari et al., 2020, "ZeRO", section 3.2 and 6.1: bytes of activations of L layers as 12 h b s each, and of the
// layers' inputs alone, which checkpointing keeps; with P_a each of `parts` ranks keeps a part of these.
double zero_activations(const Transformer& model);
double zero_checkpoints(const Transformer& model, int parts);

}  // namespace planner
