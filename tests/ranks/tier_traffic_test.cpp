// What moves between the device and other tiers, against the estimate: to the byte.
#include <torch/torch.h>

#include <filesystem>
#include <numeric>

#include "covering.h"
#include "lm.h"
#include "most_moved.h"
#include "optimizers.h"

namespace zero::test::tier_traffic_test {

Options with_disk() {
  return {
      .seed = 3,
      .disk = {.directories = {std::filesystem::temp_directory_path()}, .checks = false, .block = 16384, .depth = 4}};
}

void expect_as_estimated(Job job) {
  SCOPED_TRACE(describe(job) + " " + job.plan.label());
  job.options = with_disk();
  if (const auto faults = job.plan.faults({job.ranks, {.shard = job.shard}}); !faults.empty()) {
    const std::string refused = thrown_by([&] { on_ranks<Lm>(job, lm_with_dropout(0), [](Lm&, Engine&, int) {}); });
    EXPECT_TRUE(says(refused, {faults.front()}));
    return;
  }
  if (job.plan.precision() == Precision::fp16) job.options.loss_scale = LossScale{.initial = 0x1p10};
  expect_moved_as_estimated(job, lm_with_dropout(0));
}

// One for each form of what is kept, and for each number of times that an update goes over it.
std::vector<Optimizer> all_optimizers() {
  std::vector<Optimizer> all{Sgd{.lr = 0.1}, Lion{.lr = 1e-3}, AdamW{.lr = 2e-3, .eps = 1e-4},
                             AdamW{.lr = 2e-3, .eps = 1e-4, .amsgrad = true}};
  for (const auto& more : {narrow_moments(), whole_optimizers()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<std::size_t> numbered(std::size_t count) {
  std::vector<std::size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

std::vector<Precision> every_precision() {
  std::vector<Precision> all;
  for (const std::string_view name : precisions()) all.push_back(precision_named(name));
  std::erase(all, Precision::fp8);  // computes as bf16 does; it takes no linear layer of this model's sizes
  return all;
}

using States = std::vector<State>;
Plan on_disk(Plan plan, const States& states) {
  for (const State state : states) plan = plan.offload(state, Tier::disk);
  return plan;
}

// Ranks and those of a shard group, plan.
struct Where {
  int ranks, shard;
  Plan plan;
};

std::vector<Where> every_where() {
  std::vector<Where> all;
  for (const int ranks : {1, 2, 4})
    for (const Plan& plan : all_plans()) all.push_back({ranks, ranks, plan});
  for (const Plan& plan : {Plan::hybrid(), Plan::hybrid_zero2()}) all.push_back({4, 2, plan});
  return all;
}

// Optimizer, precision, where, micro-batches a step, reproducible, states on disk.
using Moving = std::tuple<std::size_t, Precision, std::size_t, int, bool, States>;
class TierBytes : public testing::TestWithParam<Moving> {};

TEST_P(TierBytes, MovedAreAsEstimated) {
  const auto& [which, precision, where, accumulate, reproducible, states] = GetParam();
  const auto [ranks, shard, plan] = every_where()[where];
  expect_as_estimated(
      {.plan = on_disk(plan, states).precision(precision).accumulate(accumulate).reproducible(reproducible),
       .ranks = ranks,
       .optimizer = all_optimizers()[which],
       .shard = shard});
}

std::string title_of(const testing::TestParamInfo<Moving>& tested) {
  const auto& [which, precision, where, accumulate, reproducible, states] = tested.param;
  const auto [ranks, shard, plan] = every_where()[where];
  std::string title = std::to_string(which) + in_title(std::string(name(all_optimizers()[which]))) +
                      in_title(ranks, accumulate, precision) + "InGroupsOf" + std::to_string(shard) +
                      in_title(plan.label()) + (reproducible ? "Reproducible" : "");
  for (const State state : states) title += in_title(std::string(name(state)));
  return title;
}

INSTANTIATE_TEST_SUITE_P(All, TierBytes,
                         testing::ValuesIn(covering(numbered(all_optimizers().size()), every_precision(),
                                                    numbered(every_where().size()), std::vector{1, 2, 3, 5},
                                                    std::vector{false, true},
                                                    std::vector<States>{{State::optimizer},
                                                                        {State::gradient},
                                                                        {State::parameter},
                                                                        {State::gradient, State::optimizer},
                                                                        {State::parameter, State::optimizer}})),
                         title_of);

// What is built, looked at, saved and loaded is apart, and a step that is skipped reads the gradient once.
TEST(TierBytes, OfStepsAreApartFromOthers) {
  const auto folder = std::filesystem::temp_directory_path() / ("zero-traffic-" + std::to_string(getpid()));
  Job job{on_disk(Plan::zero2().bf16(), {State::gradient, State::optimizer}), 2};
  job.options = with_disk();
  on_ranks<Lm>(job, lm_with_dropout(0), [&](Lm& model, Engine& engine, int) {
    const auto optimizer = [&] { return engine.setup_tier_traffic().on(Tier::disk, State::optimizer); };
    EXPECT_EQ(engine.tier_traffic(), TierTraffic{});
    const std::int64_t held = engine.ledger().on(Tier::disk, Owner::optimizer).bytes;
    EXPECT_EQ(optimizer().read, 0);
    EXPECT_EQ(optimizer().written, held);
    train_step(model, engine);
    const TierTraffic first = engine.tier_traffic();
    EXPECT_EQ(optimizer().written, held);
    engine.save(folder.string());
    engine.main_parameter(model.bias);
    EXPECT_GT(optimizer().read, 0);
    engine.load(folder.string());
    EXPECT_GT(optimizer().written, held);
    { const Gather scope = gather({model.bias}); }
    EXPECT_EQ(engine.tier_traffic(), first);
    engine.reset_traffic();
    EXPECT_EQ(engine.tier_traffic(), TierTraffic{});
    train_step(model, engine);
    EXPECT_EQ(engine.tier_traffic(), first);
  });
  std::filesystem::remove_all(folder);
}

TEST(TierBytes, OfAModelInMemoryAreNone) {
  on_ranks<Lm>({Plan::zero3(), 2}, lm_with_dropout(0), [&](Lm& model, Engine& engine, int) {
    train_step(model, engine);
    EXPECT_EQ(engine.tier_traffic(), TierTraffic{});
    EXPECT_EQ(engine.setup_tier_traffic(), TierTraffic{});
    EXPECT_EQ(engine.estimate().moved, TierMoves{});
  });
}

}  // namespace zero::test::tier_traffic_test
