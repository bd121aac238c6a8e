// Which parameters of a module are cut over a tensor axis, chosen by what the module computes: its operators are
// recorded in one micro-batch, and played through, on tensors without memory, with this or that parameter cut.
//
//   zero::Options options{.tensor = zero::tensor_automatic(*model, mesh.size(zero::Axis::tensor),
//                                                          [&] { model->forward(sample).mean().backward(); })};
#pragma once

#include <functional>

#include "zero/tensor_rule.h"

namespace torch::nn {
class Module;
}

namespace zero {

// Takes those parameters along those dimensions, of sizes that the ranks divide, for which a rank computes, moves and
// keeps least, operators that would run whole counted as what they are; layers that are alike (whose names differ in
// numbers) are cut alike. `micro_batch` is a forward, with its backward if the engine is to train, called once, on this
// thread, before there is an engine; the sizes of its input decide how much a gather weighs beside a product. The
// module is left as it was: buffers, gradients and LibTorch's default generator too. Of ranks that run the same
// operators on the same sizes the choice is the same: give them one sample, and one set of weights to a model whose
// operators depend on values. No collective. On one rank no parameter is taken. Throws ConfigError for no function and
// for fewer ranks than one, and what the function throws.
TensorRule tensor_automatic(torch::nn::Module& module, int ranks, const std::function<void()>& micro_batch);

}  // namespace zero
