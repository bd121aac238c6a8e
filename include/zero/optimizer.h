// Optimizers as values. The engine runs them element by element over the flat shards, in fp32 (fp64
// for fp64 parameters), with LibTorch's mathematics and defaults.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "zero/dtype.h"

namespace zero {

// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

// Stochastic gradient descent; with momentum 0 it keeps no state.
struct Sgd {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  // added to the gradient
  bool nesterov = false;
};

using Optimizer = std::variant<AdamW, Sgd>;

// Moments of one element, in elements of the accumulation dtype (AdamW 2, momentum 1, plain 0).
int moments(const Optimizer& optimizer);
double learning_rate(const Optimizer& optimizer);

// What a parameter group is chosen by.
struct ParameterInfo {
  std::string name;  // as in named_parameters()
  std::vector<std::int64_t> shape;
  bool embedding = false;  // owned by a torch::nn::Embedding
};

// Parameters with their own hyper-parameters; a parameter belongs to the first group that takes it.
struct ParamGroup {
  std::function<bool(const ParameterInfo&)> takes;
  std::optional<double> weight_decay;
  double lr_scale = 1.0;
};

// No weight decay on norms, biases (anything of one dimension or none) and embeddings.
ParamGroup no_decay_on_norms_biases_embeddings();

}  // namespace zero
