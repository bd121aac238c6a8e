// States on disk: the bits of memory, what the ledger and the estimate say of them, and what cannot be there.
#include <torch/torch.h>

#include <filesystem>
#include <numeric>

#include "covering.h"
#include "lm.h"
#include "optimizers.h"
#include "states.h"
#include "zero/error.h"

namespace zero::test {
namespace {

// Small operations, so that there are many of them.
DiskOptions small_disk(int directories = 1) {
  const std::vector<std::filesystem::path> where(static_cast<std::size_t>(directories),
                                                 std::filesystem::temp_directory_path());
  return {.directories = where, .checks = true, .block = 16384, .depth = 4};
}

enum class OnDisk { optimizer, gradient, both };

Plan offloaded(Plan plan, OnDisk which) {
  if (which != OnDisk::gradient) plan = plan.offload(State::optimizer, Tier::disk);
  if (which != OnDisk::optimizer) plan = plan.offload(State::gradient, Tier::disk);
  return plan;
}

bool possible(const Plan& plan, int ranks, OnDisk which) {
  return offloaded(plan, which).faults(MeshShape{ranks}).empty();
}

std::vector<Optimizer> all_optimizers() {
  std::vector<Optimizer> all = every_optimizer();
  for (const auto& more : {narrow_moments(), whole_optimizers()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Optimizer, precision, ranks, micro-batches, plan, what is on disk.
using Where = std::tuple<std::size_t, Precision, int, int, Plan, OnDisk>;
class Tiers : public testing::TestWithParam<Where> {};

TEST_P(Tiers, HaveTheBitsOfMemory) {
  const auto& [which, precision, ranks, accumulate, plan, on_disk] = GetParam();
  Job job{plan.precision(precision).accumulate(accumulate), ranks, all_optimizers()[which], {.clip = 1, .seed = 3}, 3};
  if (precision == Precision::fp16) job.options.loss_scale = LossScale{.initial = 0x1p10};
  const Outcome in_memory = train<Lm>(job, lm_with_dropout(0.1));
  if (!possible(job.plan, ranks, on_disk)) {
    job.plan = offloaded(job.plan, on_disk);
    EXPECT_NE(thrown_by([&] { train<Lm>(job, lm_with_dropout(0.1)); }), "");
    return;
  }
  job.plan = offloaded(job.plan, on_disk);
  job.options.disk = small_disk(ranks == 2 ? 2 : 1);
  EXPECT_EQ(difference(in_memory, train<Lm>(job, lm_with_dropout(0.1))), "");
}

std::vector<Where> places() {
  std::vector<std::size_t> all(all_optimizers().size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<Precision> precisions;
  for (const std::string_view name : zero::precisions()) precisions.push_back(precision_named(name));
  std::erase(precisions, Precision::fp8);  // computes as bf16 does; it takes no linear layer of this model's sizes
  return covering(all, precisions, std::vector{1, 2, 4}, std::vector{1, 3}, all_plans(),
                  std::vector{OnDisk::optimizer, OnDisk::gradient, OnDisk::both});
}

std::string name_of(const testing::TestParamInfo<Where>& tested) {
  const auto& [which, precision, ranks, accumulate, plan, on_disk] = tested.param;
  return std::to_string(which) + in_title(std::string(name(all_optimizers()[which]))) +
         in_title(ranks, accumulate, precision) + in_title(plan.label()) + std::to_string(static_cast<int>(on_disk));
}

INSTANTIATE_TEST_SUITE_P(All, Tiers, testing::ValuesIn(places()), name_of);

// What is on disk is in no memory, and what passes it through is as large as was foreseen.
TEST(TierBytes, AreThoseOfTheEstimate) {
  for (const OnDisk on_disk : {OnDisk::optimizer, OnDisk::both}) {
    Job job{offloaded(Plan::zero2().bf16().accumulate(2), on_disk), 2};
    job.options.disk = small_disk();
    job.options.disk.checks = false;  // they take memory as the state grows
    on_ranks<Lm>(job, lm_with_dropout(0), [&](Lm& model, Engine& engine, int) {
      for (int step = 0; step < 2; ++step) train_step(model, engine);
      const Ledger ledger = engine.ledger();
      const Estimate estimate = engine.estimate();
      EXPECT_EQ(ledger.on(Tier::disk, Owner::optimizer).bytes, estimate.on(Tier::disk).optimizer);
      EXPECT_EQ(ledger.on(Tier::disk, Owner::gradient).peak, estimate.on(Tier::disk).gradient);
      EXPECT_EQ(ledger[Owner::optimizer].bytes, 0);
      EXPECT_GT(estimate.on(Tier::disk).optimizer, 0);
      EXPECT_LE(ledger[Owner::update].peak, estimate.update);
      EXPECT_LE(ledger.peak_held, estimate.held());
    });
  }
}

Options on_disk() {
  return {.disk = small_disk()};
}

TEST(TiersOfAnEngine, AreSavedAndLoadedByOthers) {
  const Plan in_memory = Plan::zero2().bf16(), on_disk = offloaded(in_memory, OnDisk::both);
  for (const auto& [from, to] : {std::pair(in_memory, on_disk), std::pair(on_disk, in_memory)}) {
    const auto folder = std::filesystem::temp_directory_path() / ("zero-tiers-" + std::to_string(getpid()));
    Job job{from, 2};
    job.options.disk = small_disk();
    std::string expected;
    on_ranks<Lm>(job, lm_with_dropout(0), [&](Lm& model, Engine& engine, int) {
      for (int step = 0; step < 2; ++step) train_step(model, engine);
      engine.save(folder.string());
    });
    const auto go_on = [&](const Plan& plan) {
      Outcome end;
      job.plan = plan;
      on_ranks<Lm>(job, lm_with_dropout(0), [&](Lm& model, Engine& engine, int rank) {
        engine.load(folder.string());
        Outcome run;
        for (int step = 0; step < 2; ++step) run.record(train_step(model, engine));
        if (rank == 0) end = run;
      });
      return end;
    };
    EXPECT_EQ(difference(go_on(from), go_on(to)), "") << from.label() << " to " << to.label();
    std::filesystem::remove_all(folder);
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
    job.plan = offloaded(job.plan, OnDisk::both);
    job.options.disk = small_disk();
    EXPECT_EQ(difference(in_memory, train<Lm>(job, course)), "") << name(precision);
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
            "zero3 with gradient on disk and optimizer on disk");
}

}  // namespace
}  // namespace zero::test
