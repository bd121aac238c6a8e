// Activations within a budget that come back from disks, or from 8 bits.
#include <torch/torch.h>

#include <cmath>

#include "activation_trials.h"
#include "covering.h"
#include "folder.h"
#include "harness.h"
#include "lm.h"
#include "settings.h"

namespace zero::test::stored_activations_test {

constexpr std::int64_t kWidth = 128, kRows = 256;

// With a residual, whose activations products and others read, and a convolution.
struct Residual : torch::nn::Module {
  Residual() {
    for (int i = 0; i < 6; ++i)
      layers->push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    const at::NoGradGuard no_grad;
    at::Generator generator = at::detail::createCPUGenerator(1);
    for (const at::Tensor& each : parameters()) each.copy_(at::randn(each.sizes(), generator) * .1);
  }
  at::Tensor loss(std::int64_t index) {
    at::Tensor y = at::randn({kRows, kWidth}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 + index)));
    for (const auto& layer : *layers)
      y = y + torch::dropout(torch::gelu(layer->as<torch::nn::LinearImpl>()->forward(y.tanh())), .1, /*train=*/true);
    return y.square().mean();
  }
  torch::nn::ModuleList layers{};
};

struct Seen {
  Outcome outcome;
  ActivationReport report;
  std::int64_t on_disk = 0;  // bytes of activations, at most
};

Seen trained(const Plan& plan, int ranks = 1, int steps = 5) {
  const Folder folder;
  Seen seen;
  Job job{.plan = plan, .ranks = ranks, .steps = steps};
  job.options.disk = {.directories = {folder.path()}, .block = 65536, .depth = 4};
  seen.outcome = train_by<Residual>(job, {}, [&](Residual& model, Engine& engine, Outcome& run, int rank) {
    for (int step = 0; step < steps; ++step) {
      engine.backward(model.loss(step * ranks + rank));
      run.record(engine.step());
    }
    if (rank == 0) {
      seen.report = engine.activations();
      seen.on_disk = engine.ledger().on(Tier::disk, Owner::activation).peak;
    }
  });
  return seen;
}

TEST(StoredActivations, ComeBackFromDisksWithTheSameBits) {
  std::int64_t moved = 0;
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const Plan plan = Plan::zero3().precision(precision);
    const Seen without = trained(plan, 2), all = trained(plan.activation_budget({.share = 1}), 2);
    for (const int percent : {60, 35}) {
      const Plan within = plan.activation_budget({.bytes = all.report.unlimited_bytes * percent / 100});
      for (const int steps : {1, 2, 5}) {
        const Trials by_chance(static_cast<std::uint32_t>(percent), /*refuses=*/true);
        const Seen seen = trained(within.offload(State::activation, Tier::disk), 2, steps);
        for (std::size_t i = 0; i < seen.outcome.losses.size(); ++i)
          EXPECT_EQ(seen.outcome.losses[i], without.outcome.losses[i]) << percent << " % in step " << i;
        moved += seen.report.moved_bytes;
        EXPECT_TRUE(seen.report.moved_bytes == 0 || seen.on_disk > 0);
        if (seen.report.planned_bytes == 0) continue;  // before there is a plan, what chance has kept may be too much
        EXPECT_LE(seen.report.peak_bytes, seen.report.budget_bytes) << percent << " % after " << steps;
      }
    }
  }
  EXPECT_GT(moved, 0);
}

// Whatever goes where.
TEST(StoredActivations, ComeBackWithTheSameBitsWhateverGoes) {
  std::int64_t moved = 0;
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const Plan plan = Plan::zero3().precision(precision);
    const Seen without = trained(plan);
    for (std::uint32_t seed = 1; seed <= (long_tests() ? 200U : 10U); ++seed) {
      const Trials by_chance(seed);
      const Seen seen = trained(plan.activation_budget({.share = .2 + .01 * static_cast<double>(seed % 60)})
                                    .offload(State::activation, Tier::disk));
      EXPECT_EQ(difference(without.outcome, seen.outcome), "") << "seed " << seed;
      moved += seen.report.moved_bytes;
    }
  }
  EXPECT_GT(moved, 0);
}

// What follows a plan is what was foretold, read ahead or not.
TEST(StoredActivations, AreForetold) {
  const Plan plan = Plan::zero3();
  const Seen all = trained(plan.activation_budget({.share = 1}));
  const Seen seen =
      trained(plan.activation_budget({.bytes = all.report.unlimited_bytes / 2}).offload(State::activation, Tier::disk));
  EXPECT_GT(seen.report.planned_bytes, 0);
  EXPECT_NEAR(static_cast<double>(seen.report.planned_bytes), static_cast<double>(seen.report.peak_bytes), 4096);
  EXPECT_LE(seen.report.peak_bytes, seen.report.budget_bytes);
}

// Rounded is what products of a forward have read, before a backward reads it: under every plan and budget the same,
// and close to what it is without.
TEST(StoredActivations, InEightBitsAreTheSameUnderEveryPlan) {
  for (const Wire wire : {Wire::fp8, Wire::int8}) {
    const auto in = [&](const Plan& plan, double share) {
      return trained(plan.activation_budget({.share = share}).activations_in(wire), 2);
    };
    const Seen first = in(Plan::ddp(), 1), without = trained(Plan::ddp(), 2);
    EXPECT_NE(difference(first.outcome, without.outcome), "");
    for (std::size_t i = 0; i < without.outcome.losses.size(); ++i)
      EXPECT_NEAR(first.outcome.losses[i] / without.outcome.losses[i], 1, 3e-3) << i;
    for (const double share : {.7, .5})
      for (const Plan& plan : {Plan::ddp(), Plan::zero2(), Plan::zero3()}) {
        std::int64_t moved = 0;
        for (const std::uint32_t seed : {7U, 8U, 9U}) {  // chance may find nothing worth storing
          const Trials by_chance(seed, /*refuses=*/true);
          const Seen seen = in(plan, share);
          EXPECT_EQ(difference(first.outcome, seen.outcome), "") << plan.label() << " " << share;
          moved += seen.report.moved_bytes;
        }
        EXPECT_GT(moved, 0) << plan.label() << " " << share;
      }
  }
}

TEST(StoredActivations, AreRefusedByName) {
  const Plan within = Plan::zero3().activation_budget({.share = .5});
  EXPECT_TRUE(says(thrown_by([&] { trained(within.offload(State::activation, Tier::host)); }),
                   {"activations of a model on the host are in its memory as it is"}));
  EXPECT_TRUE(says(thrown_by([&] { trained(Plan::zero3().offload(State::activation, Tier::disk)); }),
                   {"activation on tier disk", "needs an activation budget"}));
  EXPECT_TRUE(says(thrown_by([&] { trained(Plan::zero3().activations_in(Wire::int8)); }),
                   {"wire int8", "needs an activation budget"}));
  EXPECT_TRUE(says(thrown_by([&] { trained(within.activations_in(Wire::int4)); }),
                   {"activations can be kept as native, fp8 or int8, not in int4"}));
  EXPECT_TRUE(
      says(thrown_by([&] { trained(within.offload(State::activation, Tier::disk).activations_in(Wire::int8)); }),
           {"activation on tier disk goes there as it is"}));
}

}  // namespace zero::test::stored_activations_test
