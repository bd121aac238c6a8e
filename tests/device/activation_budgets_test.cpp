// Activations within a budget on the accelerator, whose memory is what its allocator says.
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include <memory>

#include "device/engines.h"
#include "ranks/activation_trials.h"

namespace zero::test::activation_budgets_test {

constexpr std::int64_t kWidth = 64, kRows = 256;

// Its activations are much more than all else.
struct Deep : torch::nn::Module {
  Deep() {
    for (int i = 0; i < 12; ++i) {
      layers->push_back(torch::nn::Linear(kWidth, kWidth));
      layers->push_back(torch::nn::GELU());
    }
  }
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = numbers(index, {kRows, kWidth}).to(parameters().front().device());
    return torch::dropout(layers->forward(x), .1, /*train=*/true).square().mean();
  }
  torch::nn::Sequential layers = register_module("layers", torch::nn::Sequential());
};

struct Seen {
  Outcome outcome;
  ActivationReport report;
  std::int64_t peak = 0;  // of the last micro-batch, above what was there before it
};

Seen train(const Plan& plan, int steps) {
  Seen seen;
  seen.outcome = train_by<Deep>({.plan = plan, .ranks = 1, .steps = steps}, course_on<Deep>(accelerator::kType),
                                [&](Deep& model, Engine& engine, Outcome& run, int) {
                                  const c10::DeviceIndex device = model.parameters().front().device().index();
                                  auto* const allocator = c10::getDeviceAllocator(accelerator::kType);
                                  for (int step = 0; step < steps; ++step) {
                                    accelerator::synchronize(device);
                                    const std::int64_t before = accelerator::statistics(device).allocated;
                                    allocator->resetPeakStats(device);
                                    run.record(train_step(model, engine));
                                    seen.peak = accelerator::statistics(device).peak - before;
                                    seen.report = engine.activations();
                                  }
                                });
  return seen;
}

class ActivationBudgetsOnDevices : public ModelsOnDevices {};

// The device's allocator sees it: gradients and what one operator needs come beside.
TEST_F(ActivationBudgetsOnDevices, TakeSoMuchLessOfTheDevice) {
  const std::int64_t one = kRows * kWidth * 4;
  const Plan plan = Plan::zero2();
  const Seen all = train(plan.activation_budget({.share = 1}), 4);
  const Seen without = train(plan, 4);
  EXPECT_EQ(difference(without.outcome, all.outcome), "");
  ASSERT_GT(all.report.unlimited_bytes, 20 * one);
  for (const int percent : {60, 40}) {
    const std::int64_t budget = all.report.unlimited_bytes * percent / 100;
    for (const int steps : {1, 4}) {
      const Seen within = train(plan.activation_budget({.bytes = budget}), steps);
      Outcome so_far = within.outcome;
      if (steps == 4) {
        EXPECT_EQ(difference(without.outcome, so_far), "") << percent << " %";
        EXPECT_EQ(within.report.planned_bytes, within.report.peak_bytes);
        EXPECT_LE(within.report.peak_bytes, budget);
      }
      EXPECT_LE(within.report.peak_bytes, budget + 3 * one) << percent << " % in step " << steps;
      EXPECT_GT(within.report.recomputations, 0);
      EXPECT_LE(within.peak - budget, without.peak - all.report.unlimited_bytes + 5 * one)
          << percent << " % in step " << steps;
    }
  }
}

// Backward runs on another thread, whose operators go through the same plan.
TEST_F(ActivationBudgetsOnDevices, HoldForBackwardsOfTheProgram) {
  const auto run = [](const Plan& plan) {
    return train_by<Deep>({.plan = plan, .ranks = 2, .steps = 4}, course_on<Deep>(accelerator::kType),
                          [&](Deep& model, Engine& engine, Outcome& outcome, int rank) {
                            for (int step = 0; step < 4; ++step) {
                              model.loss(step * 2 + rank).backward();
                              outcome.record(engine.step());
                            }
                          });
  };
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const Outcome without = run(Plan::zero3().precision(precision));
    const Trials trials;
    EXPECT_EQ(difference(without, run(Plan::zero3().precision(precision).activation_budget({.share = .3}))), "");
    EXPECT_GT(trials.recomputed(), 0);
  }
}

}  // namespace zero::test::activation_budgets_test
