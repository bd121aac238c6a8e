// The cross entropy of a linear head, over pieces of the tokens, so that the logits of all of them never exist at once.
//
//   loss = zero::cross_entropy(hidden, head->weight, targets, {.pieces = 8});
//
// With a large vocabulary logits and their gradients are the largest tensors of a step. Of each piece they are computed
// again in backward, at the price of the head's product once more. With engines and without.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace zero {

// Over the targets that are not ignored; the mean of none is not a number.
enum class LossReduction : std::uint8_t { mean, sum };

struct CrossEntropyOptions {
  at::Tensor bias = {};  // [classes]
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;  // 0 to 1
  LossReduction reduction = LossReduction::mean;
  // Of as many tokens each, the last one of fewer; at most one a token. 0: so many that one's logits take no more than
  // `piece_bytes`, in fp32, but as few.
  std::int64_t pieces = 0;
  std::int64_t piece_bytes = std::int64_t{16} << 20;
};

// Of hidden [..., size], weight [classes, size] and targets [...] of int64: torch::linear, its result in fp32 (fp64 of
// fp64), cross_entropy. In one piece it is these, and has their bits; in several, sums over the pieces in their order:
// under an engine the same bits under every plan and on any number of ranks. The gradients of weight and bias are added
// up in fp32. With gradients disabled nothing is kept, and nothing computed twice.
//
// As zero::checkpoint it has no gradients of gradients in several pieces. Throws ConfigError for sizes and dtypes that
// do not go together.
at::Tensor cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                         const CrossEntropyOptions& options = {});

}  // namespace zero
