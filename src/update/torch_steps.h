// Runs optimizers of LibTorch's kind on the stretches of parameters that this rank updates.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "backwards/accounts.h"
#include "device/kernels.h"
#include "update/torch_fields.h"
#include "zero/optimizer.h"

namespace torch::optim {
class OptimizerOptions;
}

namespace zero {

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
