// Backwards that the program has LibTorch carry out by another call than at::Tensor::backward:
//
//   zero::around_backward({a, b}, {}, [&] { torch::autograd::backward({a, b}, {}); });
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace zero {

// Calls `backward`, which is to differentiate `roots`, as at::Tensor::backward is called: every engine of this thread
// whose parameters it reaches has a micro-batch of it. `gradients` are those that the roots are given; none, or an
// undefined one: the root is a loss of one element. The loss that is reported is the sum of the roots, each times its
// gradient. `create_graph`: what `backward` gives LibTorch under that name, which tells gradients of gradients from
// activations that the program computes again. Inside another backward, or where the thread has no engine, it does
// nothing but call. Throws StateError where roots have different loss scales, or, once engines are reached, where a
// root is undefined, so that there is no loss to report; what `backward` throws; and what at::Tensor::backward does.
// Collective as Engine::backward.
void around_backward(at::TensorList roots, at::TensorList gradients, const std::function<void()>& backward,
                     bool create_graph = false);

}  // namespace zero
