// Hears of the gradients that autograd accumulates into a parameter, whatever hooks the program has on it.
//
// A tensor has one place for a hook after accumulation, which is the program's. This one is on the node of the graph
// that accumulates, which lives as long as the hook does: all graphs use it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace torch::autograd {
struct Node;
}

namespace zero {

class AccumulationHook {
 public:
  // `call` is called on the thread that accumulates, when the gradient is in grad() and all hooks of the program have
  // been called.
  AccumulationHook(at::Tensor parameter, std::function<void()> call);
  // Calls no more. Where a backward that engines hear of runs on this thread, the node lets go of it with its graph.
  ~AccumulationHook();
  AccumulationHook(const AccumulationHook&) = delete;
  AccumulationHook& operator=(const AccumulationHook&) = delete;

  // Behind hooks that the program has set since, and on another node where the parameter has one: its dtype has been
  // another one in between. Not within a backward.
  void renew();

 private:
  class Hook;

  void leave();

  at::Tensor parameter_;
  std::shared_ptr<const std::function<void()>> call_;  // the hook refers to it weakly
  c10::intrusive_ptr<torch::autograd::Node> node_;
  std::uintptr_t key_ = 0;  // of the node's hook
};

}  // namespace zero
