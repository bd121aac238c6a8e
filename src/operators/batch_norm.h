// Batch normalisation in training, over the batches of all ranks: what the layers of zero::sync_batch_norm compute.
//
// Thread-safety: layers are known to the thread that adds them. Backward may run on another one.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <memory>
#include <optional>
#include <span>

#include "zero/communicator.h"

namespace c10 {
class OperatorHandle;
}

namespace torch::nn {
class Module;
}

namespace zero::batch_norm {

struct Layers;

// As long as it lives, the layer is known to the thread that made it; of several of one layer the latest counts. It may
// end on any thread.
class Added {
 public:
  // `known_by`: the layer's weight or running mean.
  Added(const at::Tensor& known_by, const torch::nn::Module& layer, const Communicator& ranks);
  ~Added();
  Added(const Added&) = delete;
  Added& operator=(const Added&) = delete;

 private:
  const c10::TensorImpl* known_by_;
  std::shared_ptr<Layers> layers_;
};

// Over which ranks the operator is to be computed; none where it is not that of a layer which was added and trains.
std::optional<Communicator> ranks_of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);
// Its result is on the stack instead of its arguments. What these are of units is resident.
void run(const Communicator& ranks, torch::jit::Stack* stack);

}  // namespace zero::batch_norm
