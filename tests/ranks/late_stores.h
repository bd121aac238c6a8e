// Engines whose states lie in stores that are never addressable.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "late_store.h"
#include "lm.h"
#include "optimizers.h"

namespace zero::test {

using Watch = std::shared_ptr<LateWatch>;

using LateStates = std::vector<State>;

// Engines that the thread builds from now on keep these states in late stores.
inline void use_late_stores(const Watch& watch, const LateStates& states) {
  replace_stores([watch, states](State state, Store::Book book) -> std::unique_ptr<Store> {
    if (std::ranges::find(states, state) == states.end()) return nullptr;
    return std::make_unique<LateStore>(std::move(book), watch);
  });
}

class Late {
 public:
  explicit Late(const Watch& watch, const LateStates& states = {State::optimizer}) { use_late_stores(watch, states); }
  ~Late() { replace_stores(nullptr); }
  Late(const Late&) = delete;
  Late& operator=(const Late&) = delete;
};

// The ranks' threads end with the run.
template <class Model>
Course<Model> in_late_stores(const Watch& watch, Course<Model> course = {},
                             const LateStates& states = {State::optimizer}) {
  return {.make =
              [watch, states, make = course.make] {
                use_late_stores(watch, states);
                return make();
              },
          .before_step = course.before_step};
}

inline void expect_no_fault(const Watch& watch) {
  EXPECT_EQ(watch->faults, "");
  EXPECT_EQ(watch->under_way, 0);
}

struct Wide : torch::nn::Module {
  explicit Wide(std::int64_t n) : linear(register_module("linear", torch::nn::Linear(n, n))), size(n) {}
  at::Tensor loss(std::int64_t index) { return linear(numbers(index, {2, size})).to(at::kFloat).square().mean(); }
  torch::nn::Linear linear;
  std::int64_t size;
};

}  // namespace zero::test
