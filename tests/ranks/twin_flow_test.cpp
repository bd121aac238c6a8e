// A share of the optimizer on disk, the rest in memory: the bits of memory, and bytes as foreseen.
#include <torch/torch.h>

#include <filesystem>
#include <numeric>

#include "covering.h"
#include "folder.h"
#include "lm.h"
#include "optimizers.h"
#include "zero/error.h"

namespace zero::test::twin_flow_test {

Options with_folder() {
  return {
      .seed = 3,
      .disk = {.directories = {std::filesystem::temp_directory_path()}, .checks = false, .block = 16384, .depth = 4}};
}

std::vector<Optimizer> of_each_kind() {
  std::vector<Optimizer> all{Sgd{.lr = 0.1}, Sgd{.lr = 0.1, .momentum = 0.9}, AdamW{.lr = 2e-3, .eps = 1e-4}};
  for (const auto& more : {narrow_moments(), whole_optimizers()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

struct Below {
  bool gradient, parameter;
};

Plan divided(const Plan& plan, double share, const Below& others) {
  Plan result = plan.offload(State::optimizer, Tier::disk, share);
  if (others.gradient) result = result.offload(State::gradient, Tier::disk);
  return others.parameter ? result.offload(State::parameter, Tier::disk) : result;
}

// Optimizer, precision, ranks and those of a shard group, micro-batches, plan, share, what else is on disk.
using Divided = std::tuple<std::size_t, Precision, std::pair<int, int>, int, Plan, double, std::size_t>;
class DividedOnDisk : public testing::TestWithParam<Divided> {};

constexpr std::array kOthers{Below{false, false}, Below{true, false}, Below{true, true}};

TEST_P(DividedOnDisk, HasTheBitsOfMemoryAndTheBytesOfTheEstimate) {
  const auto& [which, precision, mesh, accumulate, preset, share, others] = GetParam();
  const Plan plan = preset.precision(precision).accumulate(accumulate);
  Job job{.plan = divided(plan, share, kOthers[others]),
          .ranks = mesh.first,
          .optimizer = of_each_kind()[which],
          .options = with_folder(),
          .shard = mesh.second};
  if (precision == Precision::fp16) job.options.loss_scale = LossScale{.initial = 0x1p10};
  if (!job.plan.faults({mesh.first, {.shard = mesh.second}}).empty()) {
    EXPECT_NE(thrown_by([&] { train<Lm>(job, lm_with_dropout(0.1)); }), "");
    return;
  }
  std::mutex mutex;
  TierTraffic most;
  std::optional<Estimate> estimate;
  const Outcome there = train_by<Lm>(job, lm_with_dropout(0.1), [&](Lm& model, Engine& engine, Outcome& run, int rank) {
    for (int step = 0; step < 3; ++step) {
      engine.reset_traffic();
      run.record(train_step(model, engine));
    }
    const TierTraffic of_step = engine.tier_traffic();
    run.parameters = parameters_of(model, engine);
    const Ledger ledger = engine.ledger();
    const StateBytes held = engine.estimate().on(Tier::disk), here = engine.estimate().on(Tier::device);
    const std::lock_guard lock(mutex);
    if (rank == 0) estimate = engine.estimate();
    for (const State state : {State::parameter, State::gradient, State::optimizer}) {
      const TierTraffic::Entry& moved = of_step.on(Tier::disk, state);
      TierTraffic::Entry& entry = most.on(Tier::disk, state);
      entry = {std::max(entry.read, moved.read), std::max(entry.written, moved.written)};
    }
    EXPECT_LE(ledger.on(Tier::disk, Owner::optimizer).bytes, held.optimizer);
    EXPECT_LE(ledger[Owner::optimizer].bytes, here.optimizer);
    EXPECT_EQ(ledger.on(Tier::disk, Owner::gradient).bytes, held.gradient);
    EXPECT_EQ(ledger[Owner::gradient].bytes, here.gradient);
    EXPECT_LE(ledger.peak_held, engine.estimate().held());
  });
  EXPECT_TRUE(most == estimate->moved.step());
  job.plan = plan;
  EXPECT_EQ(difference(train<Lm>(job, lm_with_dropout(0.1)), there), "");
}

std::vector<Divided> divisions() {
  std::vector<std::size_t> all(of_each_kind().size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<Precision> precisions;
  for (const std::string_view name : zero::precisions()) precisions.push_back(precision_named(name));
  std::erase(precisions, Precision::fp8);  // computes as bf16 does; it takes no linear layer of this model's sizes
  return covering(all, precisions, std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {4, 4}, {4, 2}}, std::vector{1, 3},
                  plans_of_meshes(), std::vector{0.2, 0.6}, std::vector<std::size_t>{0, 1, 2});
}

std::string name_of(const testing::TestParamInfo<Divided>& tested) {
  const auto& [which, precision, mesh, accumulate, plan, share, others] = tested.param;
  return std::to_string(which) + in_title(std::string(name(of_each_kind()[which]))) +
         in_title(mesh.first, accumulate, precision) + "InGroupsOf" + std::to_string(mesh.second) +
         in_title(plan.label()) + std::to_string(static_cast<int>(10 * share)) + "Beside" + std::to_string(others);
}

INSTANTIATE_TEST_SUITE_P(All, DividedOnDisk, testing::ValuesIn(divisions()), name_of);

// To the byte on every rank, where slices are alike.
TEST(DividedOptimizer, IsWhereTheEstimateSaysOnEveryRank) {
  for (const Plan& preset : {Plan::ddp(), Plan::zero1(), Plan::zero2(), Plan::zero3()})
    for (const int ranks : {1, 2})
      for (const double share : {0.2, 0.5, 0.9}) {
        Job job{.plan = divided(preset.bf16().accumulate(2), share, {preset.label() != "ddp", false}), .ranks = ranks};
        job.options = with_folder();
        SCOPED_TRACE(describe(job));
        on_ranks<Lm>(job, lm_with_dropout(0), [&](Lm& model, Engine& engine, int) {
          for (int step = 0; step < 2; ++step) train_step(model, engine);
          const Ledger ledger = engine.ledger();
          const Estimate estimate = engine.estimate();
          const StateBytes here = estimate.on(Tier::device), below = estimate.on(Tier::disk);
          EXPECT_EQ(ledger.on(Tier::disk, Owner::optimizer).peak, below.optimizer);
          EXPECT_EQ(ledger[Owner::optimizer].peak, here.optimizer);
          EXPECT_EQ(ledger.on(Tier::disk, Owner::gradient).peak, below.gradient);
          EXPECT_EQ(ledger[Owner::gradient].peak, here.gradient);
          EXPECT_EQ(here.optimizer > 0, share < 0.9) << "no unit is as small as a tenth";
          EXPECT_GE(static_cast<double>(below.optimizer), share * static_cast<double>(estimate.state.optimizer));
          EXPECT_EQ(here.optimizer + below.optimizer, estimate.state.optimizer);
        });
      }
}

TEST(DividedOptimizer, IsTheSameShareOnAllRanks) {
  const std::string refused = thrown_by([] {
    run_ranks(
        2,
        [](const World& world) {
          Lm model;
          const double share = world.rank() == 0 ? 0.5 : 0.75;
          Engine engine(model, world, Plan::zero2().offload(State::optimizer, Tier::disk, share), AdamW{},
                        with_folder());
        },
        kToDisagree);
  });
  EXPECT_TRUE(says(refused, {"different models or plans", "0.5", "0.75"})) << refused;
}

}  // namespace zero::test::twin_flow_test
