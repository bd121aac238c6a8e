// Runs optimizers of LibTorch's kind on the stretches of parameters that this rank updates.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "backwards/accounts.h"
#include "device/kernels.h"
#include "zero/dtype.h"
#include "zero/optimizer.h"

namespace zero {

// What an optimizer of LibTorch's kind keeps of a parameter, field by field, by the door that it has for files. Of one
// dimension and a value an element, or a number, of none; of the host.
using TorchFields = std::map<std::string, at::Tensor>;

// A field as it is kept of one parameter.
struct TorchField {
  std::string name;
  Dtype dtype;
  bool elementwise;
};
// What it keeps of a parameter whose main weights are of type `wide`, tried out.
std::vector<TorchField> fields_kept(const TorchOptimizer& optimizer, Dtype wide);

// What LibTorch's options of a parameter group say of an optimizer of the engine's, and back.

// Those of LibTorch's class for it, or of a TorchOptimizer's; else a learning rate alone.
std::unique_ptr<torch::optim::OptimizerOptions> torch_options(const Optimizer& optimizer);

// The optimizer with what its options say, but for the learning rate; `options` as torch_options() has them, but for
// their values. A TorchOptimizer, whose options are its own, and one that has none of LibTorch's is as it was.
Optimizer followed(const Optimizer& optimizer, const torch::optim::OptimizerOptions& options);

// The value in which they differ and to which state belongs; empty where there is none.
std::string other_state(const Optimizer& before, const Optimizer& now);

// Throws ConfigError with the reason when the optimizer is not one that goes element by element.
void require_elementwise(const TorchOptimizer& optimizer);

// One stretch: a flat parameter with an optimizer of its own, made at its first step. What the optimizer keeps is
// booked to Owner::optimizer: on a device, and on the host where the engine's allocator is in use.
class TorchStep {
 public:
  TorchStep(const TorchOptimizer& optimizer, Accounts& accounts, int unit);
  ~TorchStep();
  TorchStep(const TorchStep&) = delete;
  TorchStep& operator=(const TorchStep&) = delete;

  // `options`, but for the rate, are those of its groups whose options are of that class; null: as they were made.
  void run(const UpdateFactors& factors, const UpdateRange& range, const torch::optim::OptimizerOptions* options);

  // What the optimizer keeps, where there was a step. A copy.
  TorchFields fields() const;
  // Goes on from what another one kept of `count` main weights of type `wide`.
  void resume(const TorchFields& fields, std::int64_t count, Dtype wide);

 private:
  void book();

  const TorchOptimizer& optimizer_;
  Accounts& accounts_;
  Account account_;
  at::Tensor weights_;
  std::int64_t count_ = 0;  // elements
  std::unique_ptr<torch::optim::Optimizer> made_;
  std::unordered_map<void*, std::int64_t> kept_;  // sizes of what it allocated and still holds
  std::int64_t booked_ = 0;                       // bytes
};

}  // namespace zero
