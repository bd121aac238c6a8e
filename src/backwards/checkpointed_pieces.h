// A function of one piece of a computation after the other, of which backward computes each piece again: what is kept
// of a piece lives as long as that piece's turn.
//
// Thread-safety: none.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "base/restore.h"
#include "zero/activations.h"

namespace zero {

// While it lives, what runs on the thread without gradients is part of a forward that trains.
class CheckpointedForward {
 public:
  static bool runs() { return runs_; }

 private:
  static inline thread_local bool runs_ = false;
  Restore<bool> here_{runs_, true};
};

// Returns what function(piece..., shared...) returns for each of `pieces`, one behind the other; each piece has as many
// tensors. As checkpoint_tensors() otherwise, which is one piece with nothing shared. Gradients of what is shared are
// sums over the pieces in their order, in fp32 where they are narrower, rounded once. Of several pieces the function
// draws no random numbers.
std::vector<at::Tensor> checkpoint_pieces(TensorFunction function, const std::vector<std::vector<at::Tensor>>& pieces,
                                          const std::vector<at::Tensor>& shared);

}  // namespace zero
