// Engines on several threads of each rank, over one World.
#include <torch/torch.h>

#include <atomic>
#include <future>
#include <latch>

#include "comm/keyed_split.h"
#include "harness.h"
#include "told.h"

namespace zero::test::threads_test {

using torch::nn::Linear;

struct Small : torch::nn::Module {
  at::Tensor loss(std::int64_t index) { return second(torch::tanh(first(numbers(index, {3, 5})))).square().mean(); }
  Linear first = register_module("first", Linear(5, 7));
  Linear second = register_module("second", Linear(7, 3));
};

struct Large : torch::nn::Module {
  Large() {
    for (int i = 0; i < 6; ++i) layers->push_back(Linear(24, 24));
    register_module("layers", layers);
  }
  at::Tensor loss(std::int64_t index) {
    at::Tensor x = numbers(index, {4, 24});
    for (const auto& layer : *layers) x = torch::tanh(layer->as<Linear>()->forward(x));
    return x.square().mean();
  }
  torch::nn::ModuleList layers;
};

constexpr int kRanks = 2;
constexpr int kSteps = 6;

template <class Model>
Outcome trained(const World& world, const Plan& plan) {
  Model model;
  initialise(model, kSeed);
  Engine engine(model, world, plan, AdamW{});
  Outcome run;
  for (int step = 0; step < kSteps; ++step) run.record(train_step(model, engine));
  run.parameters = parameters_of(model, engine);
  return run;
}

using Both = std::pair<Outcome, Outcome>;
const Plan kSmallPlan = Plan::zero2().accumulate(2), kLargePlan = Plan::zero3();

Both one_after_the_other(const World& world) {
  Both both;
  both.first = trained<Small>(world, kSmallPlan);
  both.second = trained<Large>(world, kLargePlan);
  return both;
}

template <class Call>
auto on_a_thread(Call call) {
  return std::async(std::launch::async, std::move(call));
}

// The ranks build their engines in opposite orders: a rank's second thread begins when its first one is at it.
Both at_once(const World& given) {
  std::atomic<bool> armed{false};
  std::latch begun(1);
  const auto tell = [&](Collective) {
    if (armed.exchange(false)) begun.count_down();
  };
  const World world(Communicator(std::make_shared<Told>(given.communicator().impl(), tell)), given.rank(),
                    given.size());
  for (const char* const key : {"one", "other"})
    on_a_thread([&] { return split_by_key(world.communicator(), {key}); }).get();
  armed = true;
  const auto turn = [&](bool first) {
    if (!first) begun.wait();
  };
  auto small = on_a_thread([&] {
    turn(world.rank() == 0);
    return trained<Small>(world, kSmallPlan);
  });
  auto large = on_a_thread([&] {
    turn(world.rank() != 0);
    return trained<Large>(world, kLargePlan);
  });
  Both both;
  both.first = small.get();
  both.second = large.get();
  return both;
}

TEST(EnginesOnThreads, OfOneWorldTrainAtOnceAsOneAfterTheOther) {
  std::vector<Both> apart(kRanks), together(kRanks);
  run_ranks(kRanks, [&](const World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    apart[rank] = one_after_the_other(world);
    together[rank] = at_once(world);
  });
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(apart[rank].first.losses.size(), static_cast<std::size_t>(kSteps));
    EXPECT_EQ(difference(apart[rank].first, together[rank].first), "");
    EXPECT_EQ(difference(apart[rank].second, together[rank].second), "");
  }
}

// Each thread of a rank has a group of its own with those of the other ranks, split off beforehand.
Both in_groups_of_their_own(const World& world, const Plan& plan, std::launch when) {
  std::vector<World> groups;
  for (const int color : {0, 1})
    groups.emplace_back(world.communicator().split(color, world.rank()), world.local_rank(), world.local_size());
  auto small = std::async(when, [&] { return trained<Small>(groups[0], plan); });
  auto large = std::async(when, [&] { return trained<Large>(groups[1], plan); });
  Both both;
  both.first = small.get();
  both.second = large.get();
  return both;
}

TEST(EnginesOnThreads, InGroupsOfTheirOwnTrainAtOnceAsOneAfterTheOther) {
  for (const Plan& plan : all_plans()) {
    std::vector<Both> apart(kRanks), together(kRanks);
    run_ranks(kRanks, [&](const World& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      apart[rank] = in_groups_of_their_own(world, plan, std::launch::deferred);
      together[rank] = in_groups_of_their_own(world, plan, std::launch::async);
    });
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(difference(apart[rank].first, together[rank].first), "") << plan.label();
      EXPECT_EQ(difference(apart[rank].second, together[rank].second), "") << plan.label();
    }
  }
}

}  // namespace zero::test::threads_test
