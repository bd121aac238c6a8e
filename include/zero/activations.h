// Activations that are computed again in backward instead of being kept: LibTorch has no such call of its own.
//
//   x = zero::checkpoint(block, x);                                          // a module
//   x = zero::checkpoint([&](const at::Tensor& y) { return mix(y); }, x);    // any function
//
// With engines and without. Under an engine it has the bits of keeping the activations, in every precision, with
// dropout too; see docs/rules.md. After Chen, Xu, Zhang and Guestrin, Training Deep Nets with Sublinear Memory Cost,
// 2016, section 4.1.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero {

// Returns function(inputs), and keeps of it only the inputs: backward calls it once more, with the random numbers, the
// autocast and the learning of gradients that there were. With gradients disabled it only calls it.
//
// The function is kept until the graph ends, and what it refers to has to live as long; what it computes has to follow
// from its inputs and from parameters. Of its results those that are floating point have gradients. It may hold
// checkpoints. Each backward through a graph that is retained computes once more. Not thread-safe: in backward LibTorch
// calls it on the thread that runs that. Throws StateError in a backward with create_graph, whose gradients would have
// no graph, and what the function throws.
using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
std::vector<at::Tensor> checkpoint_tensors(TensorFunction function, const std::vector<at::Tensor>& inputs);

// Under an activation budget the tensor's memory stays where it is from here on, with its values, as long as the tensor
// lives: for what is read or written past operators, by data_ptr() or by another library. Of a dropped one it computes
// the values again first. Otherwise it does nothing. Of the thread that made the tensor. Returns it.
at::Tensor keep(const at::Tensor& tensor);

// Has a forward behind ->, as a module's holder and a shared pointer have.
template <class Part>
concept HasForward = requires(Part part, const at::Tensor& input) {
  at::Tensor(part->forward(input));
};

// The same of any function of several tensors, and of a module or a function of one.
template <class Part>
requires(!HasForward<Part>) std::vector<at::Tensor> checkpoint(Part function, const std::vector<at::Tensor>& inputs) {
  return checkpoint_tensors(std::move(function), inputs);
}
template <class Part>
requires HasForward<Part> || std::is_invocable_r_v<at::Tensor, Part&, const at::Tensor&> at::Tensor checkpoint(
    Part part, const at::Tensor& input) {
  const auto of_one = [part = std::move(part)](const std::vector<at::Tensor>& given) mutable {
    if constexpr (HasForward<Part>)
      return std::vector<at::Tensor>{part->forward(given.front())};
    else
      return std::vector<at::Tensor>{part(given.front())};
  };
  return checkpoint_tensors(of_one, {input}).front();
}

}  // namespace zero
