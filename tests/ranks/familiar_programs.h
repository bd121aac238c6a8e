// What the programs of docs/migrating.md and docs/recipes.md train, and how their runs are compared: `zero` is the
// library there, as in a program of a user.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness.h"

namespace zero::test {

using Batch = std::pair<torch::Tensor, torch::Tensor>;
using Batches = std::vector<Batch>;

struct RegressorImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return head(norm(torch::tanh(body->forward(x)))); }
  torch::nn::Sequential body = register_module(
      "body", torch::nn::Sequential(torch::nn::Linear(6, 40), torch::nn::GELU(), torch::nn::Linear(40, 40)));
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({40})));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(40, 3));
};
TORCH_MODULE(Regressor);

struct GeneratorImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& noise) { return layers->forward(noise); }
  torch::nn::Sequential layers = register_module(
      "layers", torch::nn::Sequential(torch::nn::Linear(4, 40), torch::nn::Tanh(), torch::nn::Linear(40, 3)));
};
TORCH_MODULE(Generator);

struct CriticImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers = register_module(
      "layers", torch::nn::Sequential(torch::nn::Linear(3, 40), torch::nn::Tanh(), torch::nn::Linear(40, 1)));
};
TORCH_MODULE(Critic);

// Of a rank: pairs of [5, width of x] and [5, width of y] numbers.
inline Batches batches(int rank, std::int64_t x, std::int64_t y, int count = 4) {
  Batches data;
  for (int i = 0; i < count; ++i)
    data.emplace_back(numbers(100 * rank + i, {5, x}), numbers(5000 + 100 * rank + i, {5, y}));
  return data;
}

// With the values that every run begins with.
template <class Network>
Network begun(std::int64_t seed = kSeed, Network network = Network()) {
  initialise(*network, seed);
  return network;
}

// What a run leaves of its networks, by name.
inline Outcome left_by(const std::map<std::string, torch::nn::Module*>& networks) {
  Outcome left;
  for (const auto& [prefix, network] : networks)
    for (const auto& item : network->named_parameters())
      left.parameters[prefix + item.key()] = item.value().detach().clone();
  return left;
}

// Of one rank, whose data are those of `data_of`.
using OnARank = std::function<Outcome(const World& world, const Plan& plan, int data_of)>;

inline Outcome run_of(const OnARank& program, const Plan& plan, int ranks, bool same_data) {
  std::vector<Outcome> runs(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](const World& world) {
    runs[static_cast<std::size_t>(world.rank())] = program(world, plan, same_data ? 0 : world.rank());
  });
  return agreed(runs);
}

// On 1, 2 and 4 ranks: all plans leave the same bits. Ranks that all have the data of one leave its bits. Returns
// what one rank leaves.
inline Outcome expect_same_bits(const OnARank& program) {
  const Outcome alone = run_of(program, Plan::ddp(), 1, true);
  for (const int ranks : {1, 2, 4}) {
    const Outcome ddp = run_of(program, Plan::ddp(), ranks, false);
    for (const Plan& plan : all_plans()) {
      SCOPED_TRACE(plan.label() + " on " + std::to_string(ranks));
      EXPECT_EQ(difference(ddp, run_of(program, plan, ranks, false)), "");
      EXPECT_EQ(difference(alone, run_of(program, plan, ranks, true)), "");
    }
  }
  return alone;
}

// program(data_of) runs without the library, program(data_of, world, plan) by an engine on a rank: one rank leaves what
// plain LibTorch does.
template <class Program>
void expect_as_plain(const Program& program) {
  const Outcome alone = expect_same_bits(
      [&](const World& world, const Plan& plan, int data_of) { return program(data_of, world, plan); });
  EXPECT_EQ(difference(program(0), alone, 1e-6), "");
}

// The same of a loop over one network: loop(network, data), and by an engine loop(network, data, world, plan).
template <class Network = Regressor, class Loop>
void expect_loop_as_plain(const Loop& loop, std::int64_t width_of_y = 3, int count = 4) {
  expect_as_plain([&](int data_of, const auto&... engine) {
    auto network = begun<Network>();
    loop(network, batches(data_of, 6, width_of_y, count), engine...);
    return left_by({{"", network.get()}});
  });
}

}  // namespace zero::test
