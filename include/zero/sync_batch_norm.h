// Batch normalisation over the batches of all ranks, of a model that is left as it is.
//
//   const auto sync = zero::sync_batch_norm(*model, world);
//   ... train ...
//
// As long as `sync` lives, what torch::nn::BatchNorm1d, 2d and 3d of the module compute in training on this thread, and
// its backward, is of the joined batch of all ranks: as one process would that has it, but for the order of sums. Of
// several of one layer that live at a time the latest counts.
// Ranks' batches may differ in size, and running statistics are the same on all ranks. Evaluation is as ever.
//
// A layer's forward exchanges its channels' statistics, and its backward their gradients' sums, once for each
// micro-batch, in a group of their own. So every rank runs these layers equally often and in the same order: one
// without data gives the model an empty batch, and no zero::no_data(). LibTorch itself refuses a batch of one value a
// channel. Under every plan the bits are the same; they are others where a step's micro-batches are split over another
// number of ranks.
#pragma once

#include <memory>

#include "zero/world.h"

namespace torch::nn {
class Module;
}

namespace zero {

class SyncBatchNorm {
 public:
  // Collective. Throws ConfigError for a module that has no such layer, or one without weight and running statistics,
  // by which a layer is known. The module is to outlive it.
  SyncBatchNorm(const torch::nn::Module& module, const World& world);
  // On the thread that it was built on. Not collective.
  ~SyncBatchNorm();
  SyncBatchNorm(SyncBatchNorm&&) noexcept;
  // What it was ends.
  SyncBatchNorm& operator=(SyncBatchNorm&&) noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

[[nodiscard]] inline SyncBatchNorm sync_batch_norm(const torch::nn::Module& module, const World& world) {
  return {module, world};
}

}  // namespace zero
