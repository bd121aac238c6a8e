// States on disk: whole tensors that pass through it, bytes that do not grow with depth, what moves outside of steps,
// what a share leaves in memory, and what cannot be there.
#include <torch/torch.h>

#include <filesystem>
#include <tuple>

#include "folder.h"
#include "lm.h"

namespace zero::test::tiers_test {

// Small operations, so that there are many of them.
Options on_disk(bool checks = false) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  return {.seed = 3, .disk = {.directories = {folder}, .checks = checks, .block = 16384, .depth = 4}};
}

using OnDisk = std::vector<State>;
const OnDisk kOptimizer{State::optimizer}, kAll{State::parameter, State::gradient, State::optimizer};

Plan offloaded(Plan plan, const OnDisk& states) {
  for (const State state : states) plan = plan.offload(state, Tier::disk);
  return plan;
}

// Layers of which a rank's slice may have a weight, which is updated as a whole, or a bias alone, which is not.
struct Layers : torch::nn::Module {
  Layers() {
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(32, 32));
    register_module("layers", layers);
  }
  at::Tensor loss(std::int64_t index) { return layers->forward(numbers(index, {4, 32})).square().mean(); }
  torch::nn::Sequential layers;
};

// Ranks, those of a shard group (0: all), plan, optimizer.
using Divided = std::tuple<int, int, Plan, std::size_t>;
class WholeTensorsOnDisk : public testing::TestWithParam<Divided> {};

TEST_P(WholeTensorsOnDisk, AreExchangedByAllRanksInOneOrder) {
  const auto& [ranks, shard, plan, which] = GetParam();
  const ParamGroup weights{.takes = [](const ParameterInfo& info) { return info.shape.size() > 1; },
                           .optimizer = Lamb{.lr = 2e-2, .eps = 1e-4}};
  Job job{.plan = offloaded(plan, kOptimizer),
          .ranks = ranks,
          .optimizer = which == 0 ? Optimizer(Muon{}) : AdamW{.lr = 2e-3, .eps = 1e-4},
          .options = on_disk(/*checks=*/true),
          .shard = shard};
  if (which == 1) job.options.groups = {weights};
  const Outcome there = train<Layers>(job);
  job.plan = plan;
  EXPECT_EQ(difference(train<Layers>(job), there), "");
}

std::vector<Divided> divided() {
  std::vector<Divided> all;
  for (const int ranks : {2, 4, 6, 8})
    for (const std::size_t which : {0, 1}) {
      all.emplace_back(ranks, 0, Plan::zero1(), which);
      all.emplace_back(ranks, 0, Plan::zero2(), which);
      if (ranks > 2) all.emplace_back(ranks, 2, Plan::hybrid_zero2(), which);
    }
  return all;
}

std::string title_of(const testing::TestParamInfo<Divided>& tested) {
  const auto& [ranks, shard, plan, which] = tested.param;
  return std::to_string(ranks) + "ranks" + in_title(plan.label()) + "InGroupsOf" + std::to_string(shard) +
         (which == 0 ? "Muon" : "GroupsWithLamb");
}

INSTANTIATE_TEST_SUITE_P(All, WholeTensorsOnDisk, testing::ValuesIn(divided()), title_of);

// Layers that are alike.
struct Deep : torch::nn::Module {
  explicit Deep(int depth) {
    for (int i = 0; i < depth; ++i) blocks->push_back(Block(0));
  }
  at::Tensor loss(std::int64_t index) { return blocks->forward(numbers(index, {4, 13})).square().mean(); }
  torch::nn::Sequential blocks = register_module("blocks", torch::nn::Sequential());
};

// With all states on disk a deeper model takes more of the device for its activations, and for nothing else.
TEST(TierBytes, OfTheDeviceDoNotGrowWithDepth) {
  for (const auto& [ranks, plan] : {std::pair(2, Plan::zero3()), std::pair(1, Plan::ddp())}) {
    const auto ledger_of = [&](int depth) {
      const Job job{.plan = offloaded(plan, kAll), .ranks = ranks, .options = on_disk()};
      Ledger ledger;
      on_ranks<Deep>(job, {.make = [depth] { return std::make_shared<Deep>(depth); }},
                     [&](Deep& model, Engine& engine, int rank) {
                       for (int step = 0; step < 3; ++step) train_step(model, engine);
                       if (rank == 0) ledger = engine.ledger();
                     });
      return ledger;
    };
    const Ledger shallow = ledger_of(6), deep = ledger_of(12);
    for (int i = 0; i < kOwners; ++i) {
      const auto owner = static_cast<Owner>(i);
      if (owner == Owner::activation) continue;
      EXPECT_EQ(shallow[owner].bytes, deep[owner].bytes) << name(owner);
      EXPECT_EQ(shallow[owner].peak, deep[owner].peak) << name(owner);
      EXPECT_EQ(2 * shallow.on(Tier::disk, owner).bytes, deep.on(Tier::disk, owner).bytes) << name(owner);
    }
    EXPECT_EQ(shallow.peak_held, deep.peak_held);
    EXPECT_GT(shallow[Owner::gathered].peak, 0);
  }
}

// What is built, looked at, saved and loaded is apart, and a step that is skipped reads the gradient once.
TEST(TierBytes, OfStepsAreApartFromOthers) {
  const Folder folder;
  const Job job{.plan = offloaded(Plan::zero2().bf16(), {State::gradient, State::optimizer}), .options = on_disk()};
  on_ranks<Lm>(job, lm_with_dropout(0), [&](Lm& model, Engine& engine, int) {
    const auto optimizer = [&] { return engine.setup_tier_traffic().on(Tier::disk, State::optimizer); };
    EXPECT_EQ(engine.tier_traffic(), TierTraffic{});
    const std::int64_t held = engine.ledger().on(Tier::disk, Owner::optimizer).bytes;
    EXPECT_EQ(optimizer().read, 0);
    EXPECT_EQ(optimizer().written, held);
    train_step(model, engine);
    const TierTraffic first = engine.tier_traffic();
    EXPECT_EQ(optimizer().written, held);
    engine.save(folder.path());
    engine.main_parameter(model.bias);
    EXPECT_GT(optimizer().read, 0);
    engine.load(folder.path());
    EXPECT_GT(optimizer().written, held);
    { const Gather scope = gather({model.bias}); }
    EXPECT_EQ(engine.tier_traffic(), first);
    engine.reset_traffic();
    EXPECT_EQ(engine.tier_traffic(), TierTraffic{});
    train_step(model, engine);
    EXPECT_EQ(engine.tier_traffic(), first);
  });
}

// To the byte on every rank, where slices are alike.
TEST(DividedOptimizer, IsWhereTheEstimateSaysOnEveryRank) {
  for (const Plan& preset : {Plan::ddp(), Plan::zero1(), Plan::zero2(), Plan::zero3()})
    for (const int ranks : {1, 2})
      for (const double share : {0.2, 0.5, 0.9}) {
        Plan plan = preset.bf16().accumulate(2).offload(State::optimizer, Tier::disk, share);
        if (preset.label() != "ddp") plan = plan.offload(State::gradient, Tier::disk);
        const Job job{.plan = plan, .ranks = ranks, .options = on_disk()};
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
          Engine engine(model, world, Plan::zero2().offload(State::optimizer, Tier::disk, share), AdamW{}, on_disk());
        },
        kToDisagree);
  });
  EXPECT_TRUE(says(refused, {"different models or plans", "0.5", "0.75"})) << refused;
}

TEST(TiersOfAnEngine, ThatAreNotThereAreRefused) {
  const auto refusal = [](const Plan& plan, const Options& options) {
    return thrown_by([&] {
      torch::nn::Linear model(4, 4);
      Engine engine(*model, World(), plan, AdamW{}, options);
    });
  };
  EXPECT_TRUE(says(refusal(Plan::ddp().offload(State::optimizer, Tier::disk), {}),
                   {"optimizer on tier disk", "Options::disk"}));
  EXPECT_TRUE(says(refusal(Plan::ddp().offload(State::optimizer, Tier::host), on_disk()), {"optimizer on tier host"}));
  EXPECT_TRUE(
      says(refusal(Plan::zero3().offload(State::activation, Tier::disk), on_disk()), {"activation on tier disk"}));
  Options nowhere = on_disk();
  nowhere.disk.directories = {"/no/such/directory"};
  EXPECT_TRUE(says(refusal(Plan::ddp().offload(State::optimizer, Tier::disk), nowhere), {"/no/such/directory"}));
}

TEST(TiersOfAnEngine, AreInThePlansName) {
  EXPECT_EQ(Plan::zero3().offload(State::optimizer, Tier::disk).offload(State::gradient, Tier::disk).label(),
            "zero3, gradient and optimizer on disk");
}

}  // namespace zero::test::tiers_test
