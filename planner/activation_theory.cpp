#include "planner/activation_theory.h"

namespace planner {

double layer_activations(const Transformer& model, int tensor_parallel, bool sequence_parallel, Recompute recompute) {
  const double input = model.seq * model.batch * model.hidden, t = tensor_parallel;
  if (recompute == Recompute::full) return 2 * input;
  const double scores = recompute == Recompute::none ? 5 * model.heads * model.seq / model.hidden : 0;
  return input * (sequence_parallel ? (34 + scores) / t : 10 + (24 + scores) / t);
}

double zero_activations(const Transformer& model) {
  return 2 * 12 * model.hidden * model.batch * model.seq * model.layers;
}

double zero_checkpoints(const Transformer& model, int parts) {
  return 2 * model.hidden * model.batch * model.seq * model.layers / parts;
}

}  // namespace planner
