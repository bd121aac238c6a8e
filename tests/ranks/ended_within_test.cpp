// What a hook of the program's may not do with the engine whose backward it is called in.
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>

#include "familiar.h"
#include "zero/error.h"

namespace zero::test::ended_within_test {

struct Once : torch::autograd::PostAccumulateGradHook {
  explicit Once(std::function<void()> c) : call(std::move(c)) {}
  void operator()(const at::Tensor&) override {
    if (call) std::exchange(call, {})();
  }
  std::function<void()> call;
};

void once(const at::Tensor& parameter, std::function<void()> call) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Once>(std::move(call)));
}

// By its own backward, or the program's, in a hook of the first gradient that comes or of the last.
template <class Body>
void everywhere(const Body& body) {
  for (const Plan& plan : all_plans())
    for (const bool own : {true, false})
      for (const char* const name : {"right.bias", "left.weight", "body.weight"}) {
        SCOPED_TRACE(plan.label() + (own ? " own " : " the program's ") + name);
        run_ranks(2, [&](const World& world) {
          Net net;
          initialise(net, kSeed);
          net.eval();
          std::optional<Engine> engine(std::in_place, net, world, plan, Sgd{.lr = 0.1});
          train_step(net, *engine);
          body(world, net, engine, net.named_parameters()[name], [&] {
            const at::Tensor loss = net.loss(world.rank());
            own ? engine->backward(loss) : loss.backward();
          });
        });
      }
}

TEST(EndedWithin, ItsOwnBackwardAnEngineIsToldSo) {
  everywhere([](const World& world, Net& net, std::optional<Engine>& engine, const at::Tensor& parameter,
                const std::function<void()>& backward) {
    once(parameter, [&] { engine.reset(); });
    const std::string fault = thrown_by(backward);
    EXPECT_TRUE(says(fault, {"rank " + std::to_string(world.rank()), "ended within its own backward"}));
    EXPECT_FALSE(engine);
    EXPECT_FALSE(parameter.grad().defined());
    const bool whole = thrown_by([&] { net.loss(0).backward(); }).empty();
    EXPECT_EQ(parameter.grad().defined(), whole);
  });
}

TEST(EndedWithin, ItsOwnBackwardAnEngineIsAssignedTo) {
  everywhere([](const World& world, Net&, std::optional<Engine>& engine, const at::Tensor& parameter,
                const std::function<void()>& backward) {
    Net other;
    initialise(other, kSeed);
    Engine next(other, world, engine->plan(), Sgd{.lr = 0.1});
    once(parameter, [&] { *engine = std::move(next); });
    EXPECT_TRUE(says(thrown_by(backward), {"ended within its own backward"}));
    other.loss(0).backward();
    EXPECT_TRUE(engine->step().applied);
  });
}

TEST(EndedWithin, WhatIsCalledThereIsRefused) {
  using Call = std::function<void(Engine&, Net&)>;
  const std::vector<std::pair<std::string, Call>> calls{
      {"release()", [](Engine& engine, Net&) { engine.release(); }},
      {"step()", [](Engine& engine, Net&) { engine.step(); }},
      {"discard()", [](Engine& engine, Net&) { engine.discard(); }},
      {"backward()", [](Engine& engine, Net& net) { engine.backward(net.left->weight.sum()); }},
      {"for_each_gradient_slice()",
       [](Engine& engine, Net&) { engine.for_each_gradient_slice([](const GradientSlice&) {}); }}};
  everywhere([&](const World& world, Net& net, std::optional<Engine>& engine, const at::Tensor& parameter,
                 const std::function<void()>& backward) {
    for (const auto& [name, call] : calls) {
      // Before the engine's first gradient it is not yet known that a backward of the program's is its own.
      std::string fault;
      const at::Tensor& later = parameter.is_same(net.right->bias) ? net.left->bias : parameter;
      once(later, [&] { fault = thrown_by([&, &call = call] { call(*engine, net); }); });
      backward();
      EXPECT_TRUE(says(fault, {"rank " + std::to_string(world.rank()), name, "within a backward"}));
      EXPECT_TRUE(engine->step().applied);
    }
    once(net.left->weight, [&] { engine->release(); });
    EXPECT_TRUE(says(thrown_by(backward), {"release() within a backward"}));
    backward();
    EXPECT_TRUE(engine->step().applied);
    engine->release();
  });
}

// One that takes no part ends at once, and one that only moves goes on.
TEST(EndedWithin, ABackwardOfOthersAnEngineMayEnd) {
  everywhere([](const World& world, Net&, std::optional<Engine>& engine, const at::Tensor& parameter,
                const std::function<void()>& backward) {
    Net other;
    initialise(other, kSeed);
    std::optional<Engine> of_other(std::in_place, other, world, Plan::zero2(), Sgd{.lr = 0.1});
    std::optional<Engine> moved;
    once(parameter, [&] {
      of_other.reset();
      moved.emplace(std::move(*engine));
    });
    backward();
    EXPECT_TRUE(moved->step().applied);
    engine.reset();
  });
}

}  // namespace zero::test::ended_within_test
