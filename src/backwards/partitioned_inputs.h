// Inputs of checkpoints that several ranks have alike, of which each keeps a slice (P_a: ZeRO, section 6.1).
//
// Thread-safety: of what a thread has, that thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace zero {

class PartitionedInputs {
 public:
  virtual ~PartitionedInputs() = default;
  // Grows with each operator on tensors of which the ranks have parts: who runs one has the same inputs on all ranks.
  virtual std::int64_t operators() const = 0;
  // This rank's slice of what all have, in memory of its own; undefined: it cannot be cut, or is a part already.
  virtual at::Tensor slice_of(const at::Tensor& input) = 0;
  // All of it. Collective.
  virtual at::Tensor whole_of(const at::Tensor& slice, at::IntArrayRef sizes) = 0;
};

// Functions that are checkpointed on this thread have their inputs kept so, as long as what is returned lives, which
// may end on any thread.
std::shared_ptr<void> partition_inputs_here(std::shared_ptr<PartitionedInputs> inputs);

// Whose operators a function runs, on this thread, while this lives.
class PartitionsAtWork {
 public:
  PartitionsAtWork();
  // Null: none's.
  std::shared_ptr<PartitionedInputs> found() const;

 private:
  std::vector<std::pair<std::shared_ptr<PartitionedInputs>, std::int64_t>> before_;
};

}  // namespace zero
