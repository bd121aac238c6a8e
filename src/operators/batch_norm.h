// Batch normalisation in training, over the batches of all ranks: what the layers of zero::sync_batch_norm compute.
//
// Thread-safety: layers are known to the thread that adds them. Backward may run on another one.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "zero/communicator.h"

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

}  // namespace zero::batch_norm
