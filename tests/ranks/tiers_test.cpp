// States on disk: the bits of memory, what the ledger and the estimate say of them, and what cannot be there.
#include <torch/torch.h>

#include <filesystem>
#include <numeric>
#include <tuple>

#include "covering.h"
#include "folder.h"
#include "lm.h"
#include "optimizers.h"
#include "states.h"
#include "zero/error.h"

namespace zero::test::tiers_test {

// Small operations, so that there are many of them.
DiskOptions small_disk(int directories = 1) {
  const std::vector<std::filesystem::path> where(static_cast<std::size_t>(directories),
                                                 std::filesystem::temp_directory_path());
  return {.directories = where, .checks = true, .block = 16384, .depth = 4};
}

using OnDisk = std::vector<State>;
const OnDisk kOptimizer{State::optimizer}, kGradient{State::gradient}, kBoth{State::gradient, State::optimizer},
    kParameter{State::parameter}, kWeights{State::parameter, State::optimizer},
    kAll{State::parameter, State::gradient, State::optimizer};

Plan offloaded(Plan plan, const OnDisk& states) {
  for (const State state : states) plan = plan.offload(state, Tier::disk);
  return plan;
}

std::vector<Optimizer> all_optimizers() {
  std::vector<Optimizer> all = every_optimizer();
  for (const auto& more : {narrow_moments(), whole_optimizers()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Optimizer, precision, ranks and those of a shard group (0: all), micro-batches, plan, what is on disk.
using Where = std::tuple<std::size_t, Precision, std::pair<int, int>, int, Plan, OnDisk>;
class Tiers : public testing::TestWithParam<Where> {};

TEST_P(Tiers, HaveTheBitsOfMemory) {
  const auto& [which, precision, mesh, accumulate, preset, on_disk] = GetParam();
  const Plan plan = preset.precision(precision).accumulate(accumulate);
  Job job{.plan = offloaded(plan, on_disk),
          .ranks = mesh.first,
          .optimizer = all_optimizers()[which],
          .options = {.clip = 1, .seed = 3, .disk = small_disk(mesh.first == 2 ? 2 : 1)},
          .shard = mesh.second};
  if (precision == Precision::fp16) job.options.loss_scale = LossScale{.initial = 0x1p10};
  const MeshShape shape = mesh.second == 0 ? MeshShape{mesh.first} : MeshShape{mesh.first, {.shard = mesh.second}};
  if (!job.plan.faults(shape).empty()) {
    EXPECT_NE(thrown_by([&] { train<Lm>(job, lm_with_dropout(0.1)); }), "");
    return;
  }
  const Outcome there = train<Lm>(job, lm_with_dropout(0.1));
  job.plan = plan;
  EXPECT_EQ(difference(train<Lm>(job, lm_with_dropout(0.1)), there), "");
}

std::vector<Where> places() {
  std::vector<std::size_t> all(all_optimizers().size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<Precision> precisions;
  for (const std::string_view name : zero::precisions()) precisions.push_back(precision_named(name));
  std::erase(precisions, Precision::fp8);  // computes as bf16 does; it takes no linear layer of this model's sizes
  return covering(all, precisions, std::vector<std::pair<int, int>>{{1, 0}, {2, 0}, {4, 0}, {4, 2}}, std::vector{1, 3},
                  plans_of_meshes(), std::vector{kOptimizer, kGradient, kBoth, kParameter, kWeights, kAll});
}

std::string name_of(const testing::TestParamInfo<Where>& tested) {
  const auto& [which, precision, mesh, accumulate, plan, on_disk] = tested.param;
  std::string title = std::to_string(which) + in_title(std::string(name(all_optimizers()[which]))) +
                      in_title(mesh.first, accumulate, precision) + "InGroupsOf" + std::to_string(mesh.second) +
                      in_title(plan.label());
  for (const State state : on_disk) title += name(state);
  return title;
}

INSTANTIATE_TEST_SUITE_P(All, Tiers, testing::ValuesIn(places()), name_of);

// What is on disk is in no memory, and what passes it through is as large as was foreseen.
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
          .options = {.seed = 3, .disk = small_disk()},
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

TEST(TierBytes, AreThoseOfTheEstimate) {
  struct Case {
    Plan plan;
    int ranks, shard;
    OnDisk states;
  };
  for (const auto& [plan, ranks, shard, states] :
       {Case{Plan::zero2(), 2, 0, kOptimizer}, Case{Plan::zero2(), 2, 0, kBoth}, Case{Plan::zero3(), 2, 0, kParameter},
        Case{Plan::zero3(), 2, 0, kAll}, Case{Plan::zero3(), 1, 0, kAll}, Case{Plan::ddp(), 2, 0, kWeights},
        Case{Plan::hybrid(), 4, 2, kWeights}})
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      Job job{.plan = offloaded(plan.precision(precision).accumulate(2), states), .ranks = ranks, .shard = shard};
      job.options.disk = small_disk();
      job.options.disk.checks = false;  // they take memory as the state grows
      SCOPED_TRACE(describe(job));
      on_ranks<Lm>(job, lm_with_dropout(0), [&](Lm& model, Engine& engine, int) {
        for (int step = 0; step < 2; ++step) train_step(model, engine);
        const Ledger ledger = engine.ledger();
        const Estimate estimate = engine.estimate();
        for (const auto& [owner, there, here] :
             {std::tuple(Owner::parameter, estimate.on(Tier::disk).parameter, estimate.on(Tier::device).parameter),
              std::tuple(Owner::gradient, estimate.on(Tier::disk).gradient, estimate.on(Tier::device).gradient),
              std::tuple(Owner::optimizer, estimate.on(Tier::disk).optimizer, estimate.on(Tier::device).optimizer)}) {
          EXPECT_EQ(ledger.on(Tier::disk, owner).peak, there) << name(owner);
          EXPECT_EQ(ledger[owner].peak, here) << name(owner);
        }
        EXPECT_EQ(ledger[Owner::gathered].peak, estimate.gathered);
        EXPECT_LE(ledger[Owner::update].peak, estimate.update);
        EXPECT_LE(ledger.peak_held, estimate.held());
      });
    }
}

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
      Job job{.plan = offloaded(plan, kAll), .ranks = ranks};
      job.options.disk = small_disk();
      job.options.disk.checks = false;
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

Options on_disk() {
  return {.disk = small_disk()};
}

// Two steps after a checkpoint of another, and the parameters then.
Outcome gone_on(Job job, const Plan& plan, const std::string& folder) {
  job.plan = plan;
  return train_by(job, lm_with_dropout(0), [&](Lm& model, Engine& engine, Outcome& run, int) {
    engine.load(folder);
    for (int step = 0; step < 2; ++step) run.record(train_step(model, engine));
  });
}

TEST(TiersOfAnEngine, AreSavedAndLoadedByOthers) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::bf16_kahan})
    for (const auto& [preset, states] :
         {std::pair(Plan::zero2(), kBoth), std::pair(Plan::zero3(), kAll), std::pair(Plan::zero3(), kParameter)}) {
      const Plan in_memory = preset.precision(precision), on_disk = offloaded(in_memory, states);
      for (const auto& [from, to] : {std::pair(in_memory, on_disk), std::pair(on_disk, in_memory)}) {
        const Folder folder;
        Job job{.plan = from, .ranks = 2};
        job.options.disk = small_disk();
        on_ranks<Lm>(job, lm_with_dropout(0), [&](Lm& model, Engine& engine, int) {
          for (int step = 0; step < 2; ++step) train_step(model, engine);
          engine.save(folder.path());
        });
        EXPECT_EQ(difference(gone_on(job, from, folder.path()), gone_on(job, to, folder.path())), "")
            << from.label() << " to " << to.label();
      }
    }
}

// A unit that is trained from the second step on gets its first state while others' are on their way.
TEST(TiersOfAnEngine, TakeUnitsThatAreUnfrozenLate) {
  const Course<Lm> course{.make = [] { return std::make_shared<Lm>(); },
                          .before_step =
                              [](Lm& model, int step) {
                                if (step == 1)
                                  for (at::Tensor& parameter : model.fixed->parameters())
                                    parameter.set_requires_grad(true);
                              }};
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::bf16_kahan}) {
    Job job{Plan::zero2().precision(precision), 2};
    const Outcome in_memory = train<Lm>(job, course);
    job.options.disk = small_disk();
    for (const Plan& plan : {offloaded(job.plan, kBoth), offloaded(Plan::zero3().precision(precision), kAll)}) {
      job.plan = plan;
      EXPECT_EQ(difference(in_memory, train<Lm>(job, course)), "") << plan.label() << name(precision);
    }
  }
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
