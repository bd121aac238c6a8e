// Several engines that one backward reaches in another order on each rank.
#include <torch/torch.h>

#include "harness.h"

namespace zero::test::orders_of_engines_test {

using torch::nn::Linear;
using torch::nn::Sequential;

// Units of several sizes; some get no gradient.
struct Part : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x).to(at::kFloat).square().mean(); }
  Sequential layers = register_module("layers", Sequential(Linear(6, 40), torch::nn::Tanh(), Linear(40, 40),
                                                           torch::nn::Tanh(), Linear(40, 40), Linear(40, 2)));
  Sequential unused = register_module("unused", Sequential(Linear(3, 3)));
};

struct Course {
  Plan plan;
  int ranks;
  bool own;      // a backward of the first engine, which the others join
  bool rotated;  // ranks compute the parts in orders of their own
};

std::vector<Outcome> train_parts(const Course& course) {
  std::vector<Outcome> runs(3);
  const auto train = [&](const World& world) {
    std::vector<Part> parts(3);
    std::vector<Engine> engines;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      initialise(parts[i], kSeed + static_cast<std::int64_t>(100 * i));
      engines.emplace_back(parts[i], world, course.plan, Sgd{.lr = 0.1, .momentum = 0.9},
                           Options{.outside = OutsideGradients::add});
    }
    // Parameters that come over a wire are used in one order.
    const bool wired = course.plan.label() == "zero3" && engines.front().memory() != Memory::common;
    const std::size_t first = course.rotated && !wired ? static_cast<std::size_t>(world.rank()) : 0;
    for (int step = 0; step < 3; ++step) {
      for (int micro = 0; micro < course.plan.accumulate(); ++micro) {
        std::vector<at::Tensor> losses(parts.size());
        for (std::size_t i = 0; i < parts.size(); ++i) {
          const std::size_t part = (i + first) % parts.size();
          losses[part] = parts[part].forward(numbers(engines[part].micro_batch(), {4, 6}));
        }
        const at::Tensor loss = losses[0] + losses[1] * 2 + losses[2] * 3;
        course.own ? engines.front().backward(loss) : loss.backward();
      }
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const StepReport report = engines[i].step();
        if (world.rank() == 0) runs[i].record(report);
      }
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto values = parameters_of(parts[i], engines[i]);
      if (world.rank() == 0) runs[i].parameters = values;
    }
  };
  run_ranks(course.ranks, train, std::chrono::minutes(1));
  return runs;
}

class OrdersOfEngines : public testing::TestWithParam<std::size_t> {};

TEST_P(OrdersOfEngines, MayDifferBetweenRanks) {
  for (const int ranks : {2, 3})
    for (const int accumulate : {1, 2})
      for (const bool own : {true, false}) {
        Course course{all_plans()[GetParam()].accumulate(accumulate), ranks, own, false};
        if (accumulate == 2) course.plan = course.plan.bf16().reduce_in(Dtype::f32);
        const std::vector<Outcome> expected = train_parts(course);
        course.rotated = true;
        const std::vector<Outcome> runs = train_parts(course);
        for (std::size_t i = 0; i < runs.size(); ++i)
          EXPECT_EQ(difference(expected[i], runs[i]), "") << i << " of " << ranks << " " << accumulate << own;
      }
}

INSTANTIATE_TEST_SUITE_P(All, OrdersOfEngines, testing::Range<std::size_t>(0, all_plans().size()),
                         [](const testing::TestParamInfo<std::size_t>& tested) {
                           return in_title(all_plans()[tested.param].label());
                         });

}  // namespace zero::test::orders_of_engines_test
