// Optimizers as values. The engine runs them element by element over the flat shards, in fp32 (fp64
// for fp64 parameters), with the mathematics and defaults of those that LibTorch has.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "zero/dtype.h"

namespace zero {

// How moments are kept between steps.
enum class MomentFormat : std::uint8_t {
  wide,    // in the accumulation dtype
  bf16,    // rounded stochastically
  block8,  // 8 bits, with a scale for each block of 256 (Dettmers et al., 2022)
};
inline constexpr int kMomentFormats = 3;

// Stochastic gradient descent; with momentum 0 it keeps no state.
struct Sgd {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  // added to the gradient
  bool nesterov = false;
};

// Duchi, Hazan and Singer, 2011.
struct AdaGrad {
  double lr = 1e-2;
  double lr_decay = 0;      // lr / (1 + (step - 1) lr_decay)
  double weight_decay = 0;  // added to the gradient
  double initial_accumulator_value = 0;
  double eps = 1e-10;
};

// Tieleman and Hinton, 2012; centered: by the variance (Graves, 2013).
struct RmsProp {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;  // added to the gradient
  double momentum = 0;
  bool centered = false;
  bool eps_inside_root = false;  // sqrt(v + eps) instead of sqrt(v) + eps
};

// Kingma and Ba, 2015.
struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  // added to the gradient
  bool amsgrad = false;     // by the largest second moment so far (Reddi, Kale and Kumar, 2018)
  MomentFormat format = MomentFormat::wide;
};

// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool decay_by_lr = true;  // false: a step takes weight_decay of a weight away, whatever the learning rate
  MomentFormat format = MomentFormat::wide;
};

// Chen et al., 2023: the sign of an interpolated momentum.
struct Lion {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;  // decoupled, times lr
};

using Optimizer = std::variant<AdamW, Sgd, AdaGrad, RmsProp, Adam, Lion>;

// Values that are kept for one element besides its weight.
inline constexpr int kMaxMoments = 3;
int moments(const Optimizer& optimizer);
MomentFormat moment_format(const Optimizer& optimizer);
double first_moment(const Optimizer& optimizer);  // what moments[0] starts with; the others, with 0
double learning_rate(const Optimizer& optimizer);
double weight_decay(const Optimizer& optimizer);
// "adamw", "sgd", ...
std::string_view name(const Optimizer& optimizer);
// Its name and hyper-parameters in words.
std::string describe(const Optimizer& optimizer);
// Everything that is wrong with the hyper-parameters, one sentence each.
std::vector<std::string> faults(const Optimizer& optimizer);

// What a parameter group is chosen by.
struct ParameterInfo {
  std::string name;  // as in named_parameters()
  std::vector<std::int64_t> shape = {};
  bool embedding = false;  // owned by a torch::nn::Embedding
  bool norm = false;       // owned by a module whose type is named ...Norm...
};

// Those of norms: for Options::full_precision.
inline bool norms(const ParameterInfo& info) {
  return info.norm;
}

// Parameters with their own hyper-parameters; a parameter belongs to the first group that takes it.
struct ParamGroup {
  std::function<bool(const ParameterInfo&)> takes;
  std::optional<double> weight_decay = {};  // instead of the optimizer's
  double lr_scale = 1.0;
  std::optional<Optimizer> optimizer = {};  // instead of the engine's
};

// What updates one parameter, after groups.
struct ParameterRule {
  Optimizer optimizer;
  double lr_scale = 1.0;
};
// For each of `infos`, in order. Throws ConfigError, listing every fault of every optimizer.
std::vector<ParameterRule> parameter_rules(const Optimizer& optimizer, const std::vector<ParamGroup>& groups,
                                           const std::vector<ParameterInfo>& infos);

// No weight decay on norms, biases (anything of one dimension or none) and embeddings.
ParamGroup no_decay_on_norms_biases_embeddings();

}  // namespace zero
