// Updates of models on the simulated accelerator that the host computes beside the next step.
#include <gtest/gtest.h>

#include "covering.h"
#include "device/offloads.h"
#include "most_moved.h"
#include "optimizers.h"
#include "zero/error.h"

namespace zero::test::delayed_update_test {

Plan delayed(const Plan& plan, Tier optimizer, Tier gradient) {
  return offloaded(plan, optimizer, gradient).delay_update();
}

std::vector<Optimizer> of_each_form() {
  return {Sgd{.lr = 0.1, .momentum = 0.9}, AdamW{.lr = 2e-3, .eps = 1e-4, .weight_decay = 0.1},
          AdamW{.lr = 2e-3, .eps = 1e-4, .format = MomentFormat::block8}};
}

// Optimizer, precision, ranks, micro-batches, plan, tiers of what the optimizer keeps and of gradients.
using Case = std::tuple<std::size_t, Precision, int, int, Plan, Tier, Tier>;
class DelayedOnDevices : public ModelsOnDevices, public testing::WithParamInterface<Case> {};

// Those of the CPU, whose optimizer is on disk.
TEST_P(DelayedOnDevices, HaveTheBitsOfTheCpu) {
  const auto& [which, precision, ranks, accumulate, preset, optimizer, gradient] = GetParam();
  const Plan plan = preset.precision(precision).accumulate(accumulate);
  Job job{delayed(plan, optimizer, gradient), ranks, of_each_form()[which], {.clip = 1, .seed = 3}, 4};
  job.options.disk = small_disk();
  job.joined = linked;
  if (precision == Precision::fp16) job.options.loss_scale = LossScale{.initial = 0x1p30};  // overflows
  if (!job.plan.faults(MeshShape{ranks}).empty()) {
    EXPECT_TRUE(says(thrown_by([&] { train<Lm>(job, lm_on(accelerator::kType, 0)); }), {"needs gradients sharded"}));
    return;
  }
  const Outcome there = train<Lm>(job, lm_on(accelerator::kType, 0));
  job.plan = plan.offload(State::optimizer, Tier::disk).delay_update();
  EXPECT_EQ(difference(train<Lm>(job, lm_on(at::kCPU, 0)), there), "");
}

std::vector<Case> cases() {
  std::vector<Precision> precisions;
  for (const std::string_view name : zero::precisions()) precisions.push_back(precision_named(name));
  return covering(std::vector<std::size_t>{0, 1, 2}, precisions, std::vector{1, 2, 4}, std::vector{1, 3}, all_plans(),
                  std::vector{Tier::host, Tier::disk}, std::vector{Tier::host, Tier::disk});
}

std::string name_of(const testing::TestParamInfo<Case>& tested) {
  const auto& [which, precision, ranks, accumulate, plan, optimizer, gradient] = tested.param;
  return std::to_string(which) + in_title(ranks, accumulate, precision) + in_title(plan.label()) +
         in_title(std::string(name(optimizer))) + in_title(std::string(name(gradient)));
}

INSTANTIATE_TEST_SUITE_P(All, DelayedOnDevices, testing::ValuesIn(cases()), name_of);

using DelayedOnADevice = ModelsOnDevices;

// The copy that is written is in the host's memory; what goes over the link is what was foreseen.
TEST_F(DelayedOnADevice, TakesAndMovesTheBytesOfTheEstimate) {
  for (const auto& [preset, precision, accumulate, ranks] :
       covering(all_plans(), std::vector{Precision::fp32, Precision::bf16, Precision::bf16_kahan}, std::vector{1, 2},
                std::vector{1, 2})) {
    const Plan plan = delayed(preset.precision(precision).accumulate(accumulate), Tier::host, Tier::host);
    if (!plan.faults(ranks).empty()) continue;
    const Job job{.plan = plan, .ranks = ranks, .joined = linked};
    SCOPED_TRACE(describe(job));
    const Course<Broad> course = course_on<Broad>(accelerator::kType);
    on_ranks<Broad>(job, course, [&](Broad& model, Engine& engine, int) {
      for (int step = 0; step < 3; ++step) train_step(model, engine);
      const Ledger ledger = engine.ledger();
      const Estimate estimate = engine.estimate();
      EXPECT_GT(estimate.late, 0);
      EXPECT_EQ(ledger.on(Tier::host, Owner::parameter).peak, estimate.on(Tier::host).parameter);
      EXPECT_EQ(ledger[Owner::parameter].peak, estimate.on(Tier::device).parameter);
      EXPECT_EQ(ledger.on(Tier::host, Owner::optimizer).peak, estimate.on(Tier::host).optimizer);
      EXPECT_EQ(ledger.on(Tier::host, Owner::gradient).peak, estimate.on(Tier::host).gradient);
      EXPECT_LE(ledger.peak_held, estimate.held());
    });
    expect_moved_as_estimated(job, course);
  }
}

TEST_F(DelayedOnADevice, IsRefusedWhereGradientsAreThere) {
  Job job{.plan = Plan::zero2().offload(State::optimizer, Tier::host).delay_update(), .ranks = 1};
  EXPECT_TRUE(says(thrown_by([&] { train<Lm>(job, lm_on(accelerator::kType, 0)); }),
                   {"a delayed update reads gradients", "offload them, too"}));
}

// Checkpoints have the latest update, on whichever tiers.
TEST_F(DelayedOnADevice, IsSavedAndLoaded) {
  expect_saved_and_loaded({to_host(Plan::zero2()).delay_update(), to_host(Plan::zero3()).delay_update(),
                           to_host(Plan::zero1()).delay_update()},
                          Job{.ranks = 2, .joined = linked});
}

}  // namespace zero::test::delayed_update_test
