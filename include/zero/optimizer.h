// Optimizers as values. The engine runs them element by element over the flat shards, in fp32 (fp64
// for fp64 parameters), with the mathematics and defaults of those that LibTorch has. Muon, Adafactor and Lamb
// need norms or products of whole tensors; they give the same bits under every plan too. Functions of optimizers
// exchange nothing and are thread-safe. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "zero/dtype.h"

namespace at {
class Tensor;
}
namespace torch::optim {
class Optimizer;
}

namespace zero {

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

// Matrices between the first and the last layer: of two dimensions, not in an embedding, and not of a module called
// head, lm_head, output, unembed, classifier or the like that is in no numbered layer.
bool hidden_matrix(const ParameterInfo& info);

// Jordan et al., 2024: the momentum of a matrix made orthogonal by Newton-Schulz iterations in bf16; each matrix on
// one rank, its owner. Tensors of more dimensions are matrices of shape [first, product of the others].
struct Muon {
  double lr = 2e-2;
  double momentum = 0.95;
  double weight_decay = 0;  // decoupled, times lr
  bool nesterov = true;
  int iterations = 5;
  bool as_large_as_adamw = false;  // steps times 0.2 sqrt(max(rows, columns)) (Liu et al., 2025), not
                                   // sqrt(max(1, rows / columns))
  std::function<bool(const ParameterInfo&)> takes = hidden_matrix;
  AdamW rest = {};  // of what it does not take; a group's weight decay and lr_scale go on it too
};

// Shazeer and Stern, 2018, as in torch.optim: of a tensor of two dimensions or more only the means of the squares of
// its rows and columns are kept, on one rank, its owner.
struct Adafactor {
  double lr = 1e-2;
  double beta2_decay = -0.8;    // the newest square counts step^beta2_decay
  double eps_square = 0x1p-23;  // squares are no smaller than its square, nor their mean than it
  double eps_step = 1e-3;       // steps are relative to the weights' root mean square, or this
  double clip = 1;              // largest root mean square of a step before its size is set
  double weight_decay = 0;      // decoupled, times lr
  bool factored = true;         // set by parameter_rules(): false for vectors
};

// You et al., 2020: AdamW's step, of the length lr times that of the weights.
struct Lamb {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 1e-2;  // part of the step
};

// Bring your own: an optimizer of LibTorch's kind whose mathematics is element by element. It is made once for each
// stretch of a parameter that a rank updates, a flat tensor of main weights in fp32 (fp64), and its gradient is the
// scaled one. The engine tries it out and throws ConfigError with the reason where it needs a closure, or gives other
// results for a tensor in parts than for the whole. What it keeps is measured, not estimated. Needs main weights.
struct TorchOptimizer {
  std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>& parameters)> make;
  double lr = 1e-3;             // set in its groups at each step
  std::string label = "torch";  // its state goes on under the same label alone
};

using Optimizer = std::variant<AdamW, Sgd, AdaGrad, RmsProp, Adam, Lion, Muon, Adafactor, Lamb, TorchOptimizer>;

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
  std::vector<std::int64_t> shape = {};
};
// For each of `infos`, in order: Muon where it takes the parameter, else its rest. Throws ConfigError, listing every
// fault of every optimizer.
std::vector<ParameterRule> parameter_rules(const Optimizer& optimizer, const std::vector<ParamGroup>& groups,
                                           const std::vector<ParameterInfo>& infos);

// No weight decay on norms, biases (anything of one dimension or none) and embeddings.
ParamGroup no_decay_on_norms_biases_embeddings();

}  // namespace zero
