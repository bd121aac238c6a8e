// A share of the optimizer on the simulated accelerator, the rest on the host or on disk: the bits of the device, and
// what is where.
#include <gtest/gtest.h>

#include <cstdlib>

#include "covering.h"
#include "device/offloads.h"
#include "folder.h"
#include "most_moved.h"
#include "optimizers.h"

namespace zero::test::twin_flow_test {

std::vector<Optimizer> of_each_form() {
  return {Sgd{.lr = 0.1, .momentum = 0.9}, AdamW{.lr = 2e-3, .eps = 1e-4, .weight_decay = 0.1},
          AdamW{.lr = 2e-3, .eps = 1e-4, .format = MomentFormat::block8}};
}

Plan divided(const Plan& plan, Tier optimizer, Tier gradient, double share) {
  return plan.offload(State::optimizer, optimizer, share).offload(State::gradient, gradient);
}

// Optimizer, precision, ranks, micro-batches, plan, tiers of what the optimizer keeps and of gradients, share.
using Divided = std::tuple<std::size_t, Precision, int, int, Plan, Tier, Tier, double>;
class DividedOptimizers : public ModelsOnDevices, public testing::WithParamInterface<Divided> {};

TEST_P(DividedOptimizers, HaveTheBitsOfTheDevice) {
  const auto& [which, precision, ranks, accumulate, plan, optimizer, gradient, share] = GetParam();
  Job job{plan.precision(precision).accumulate(accumulate), ranks, of_each_form()[which], {.clip = 1, .seed = 3}, 3};
  job.options.disk = small_disk();
  job.joined = linked;
  if (precision == Precision::fp16) job.options.loss_scale = LossScale{.initial = 0x1p30};  // overflows
  const Course<Lm> course = lm_on(accelerator::kType, 0.1);
  const Outcome expected = train<Lm>(job, course);
  job.plan = divided(job.plan, optimizer, gradient, share);
  if (!job.plan.faults(MeshShape{ranks}).empty()) {
    EXPECT_TRUE(says(thrown_by([&] { train<Lm>(job, course); }), {"gradient on tier", "needs gradients sharded"}));
    return;
  }
  EXPECT_EQ(difference(expected, train<Lm>(job, course)), "");
}

std::vector<Divided> divisions() {
  std::vector<Precision> precisions;
  for (const std::string_view name : zero::precisions()) precisions.push_back(precision_named(name));
  return covering(std::vector<std::size_t>{0, 1, 2}, precisions, std::vector{1, 2, 4}, std::vector{1, 3}, all_plans(),
                  std::vector{Tier::host, Tier::disk}, std::vector{Tier::device, Tier::host, Tier::disk},
                  std::vector{0.2, 0.6});
}

std::string name_of(const testing::TestParamInfo<Divided>& tested) {
  const auto& [which, precision, ranks, accumulate, plan, optimizer, gradient, share] = tested.param;
  return std::to_string(which) + in_title(ranks, accumulate, precision) + in_title(plan.label()) +
         in_title(std::string(name(optimizer))) + in_title(std::string(name(gradient))) +
         std::to_string(static_cast<int>(10 * share));
}

INSTANTIATE_TEST_SUITE_P(All, DividedOptimizers, testing::ValuesIn(divisions()), name_of);

using TwinFlow = ModelsOnDevices;

// Units of several stretches, of which one stays.
TEST_F(TwinFlow, KeepsWhatTheShareLeavesOnTheDevice) {
  for (const auto& [preset, precision, accumulate, ranks, gradient] :
       covering(all_plans(), std::vector{Precision::fp32, Precision::bf16, Precision::bf16_kahan}, std::vector{1, 2},
                std::vector{1, 2}, std::vector{Tier::device, Tier::host})) {
    const Plan plan = divided(preset.precision(precision).accumulate(accumulate), Tier::host, gradient, 0.4);
    if (!plan.faults(ranks).empty()) continue;
    const Job job{.plan = plan, .ranks = ranks, .joined = linked};
    SCOPED_TRACE(describe(job));
    on_ranks<Broad>(job, course_on<Broad>(accelerator::kType), [&](Broad& model, Engine& engine, int) {
      for (int step = 0; step < 2; ++step) train_step(model, engine);
      const Ledger ledger = engine.ledger();
      const Estimate estimate = engine.estimate();
      const StateBytes here = estimate.on(Tier::device), below = estimate.on(Tier::host);
      EXPECT_EQ(here.optimizer, below.optimizer) << "layers are alike";
      EXPECT_EQ(here.optimizer + below.optimizer, estimate.state.optimizer);
      EXPECT_EQ(here.gradient + below.gradient, estimate.state.gradient);
      EXPECT_EQ(here.gradient == below.gradient, gradient == Tier::host);
      EXPECT_EQ(ledger.on(Tier::host, Owner::optimizer).bytes, below.optimizer);
      EXPECT_EQ(ledger[Owner::optimizer].bytes, here.optimizer);
      EXPECT_EQ(ledger.on(Tier::host, Owner::gradient).peak, below.gradient);
      EXPECT_EQ(ledger[Owner::gradient].peak, here.gradient);
      EXPECT_LE(ledger.on(Tier::host, Owner::update).peak, estimate.staging);
      EXPECT_EQ(ledger[Owner::update].peak, 0);
      EXPECT_EQ(ledger[Owner::parameter].bytes, here.parameter);
      EXPECT_EQ(ledger[Owner::reduction].peak, estimate.reduction);
      EXPECT_LE(ledger.peak_held, estimate.held());
    });
  }
}

// What goes over the link in a step is what was foreseen; where parameters are on the host it updates all.
TEST_F(TwinFlow, MovesTheBytesOfTheEstimate) {
  for (const Tier parameter : {Tier::device, Tier::host})
    for (const Tier gradient : {Tier::device, Tier::host})
      for (const int ranks : {1, 2}) {
        const Plan plain = Plan::zero3().bf16().accumulate(2);
        Job job{.plan = plain, .ranks = ranks, .joined = linked};
        const Course<Broad> course = course_on<Broad>(accelerator::kType);
        const Outcome expected = train<Broad>(job, course);
        job.plan = divided(plain, Tier::host, gradient, 0.4).offload(State::parameter, parameter);
        SCOPED_TRACE(describe(job));
        EXPECT_EQ(difference(expected, train<Broad>(job, course)), "");
        Most measured;
        std::optional<TierTraffic> foreseen;
        on_ranks<Broad>(job, course, [&](Broad& model, Engine& engine, int rank) {
          for (int step = 0; step < 3; ++step) {
            engine.reset_traffic();
            train_step(model, engine);
          }
          measured.take(engine.tier_traffic());
          if (rank == 0) foreseen = engine.estimate().moved.step();
        });
        EXPECT_EQ(text_of(measured.of_all()), text_of(*foreseen));
      }
}

TEST_F(TwinFlow, IsSavedAndLoadedByOtherShares) {
  const std::vector<Plan> plans{Plan::zero2(), divided(Plan::zero3(), Tier::host, Tier::host, 0.3),
                                divided(Plan::zero2(), Tier::host, Tier::host, 0.7), to_host(Plan::zero2()),
                                divided(Plan::zero1(), Tier::disk, Tier::device, 0.5)};
  for (const Plan& from : plans) {
    const Folder folder;
    Job job{.plan = Plan(from).bf16(), .ranks = 2, .joined = linked};
    job.options.disk = small_disk();
    const Course<Lm> course = lm_on(accelerator::kType, 0);
    on_ranks<Lm>(job, course, [&](Lm& model, Engine& engine, int) {
      for (int step = 0; step < 2; ++step) train_step(model, engine);
      engine.save(folder.path(), {.background = true});
      engine.finish_save();
    });
    std::optional<Outcome> expected;
    for (const Plan& to : plans) {
      job.plan = Plan(to).bf16();
      Outcome end;
      on_ranks<Lm>(job, course, [&](Lm& model, Engine& engine, int rank) {
        engine.load(folder.path());
        Outcome run;
        for (int step = 0; step < 2; ++step) run.record(train_step(model, engine));
        run.parameters = parameters_of(model, engine);
        if (rank == 0) end = run;
      });
      EXPECT_EQ(difference(expected.value_or(end), end), "") << from.label() << " to " << to.label();
      expected = end;
    }
  }
}

// Scopes, units that are unfrozen late and backwards beyond the plan meet units of both kinds.
TEST_F(TwinFlow, DoesWhatTheDeviceDoes) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::bf16_kahan}) {
    const auto written = [&](const Plan& plan) {
      return train_by<Lm>({.plan = Plan(plan).precision(precision), .ranks = 2, .joined = linked},
                          lm_on(accelerator::kType, 0), [](Lm& model, Engine& engine, Outcome& run, int) {
                            for (int step = 0; step < 3; ++step) {
                              if (step == 1)
                                for (at::Tensor& parameter : model.fixed->parameters())
                                  parameter.set_requires_grad(true);
                              for (int loss = 0; loss <= step; ++loss) engine.backward(model.loss(3 * step + loss));
                              run.record(engine.step());
                              const Gather scope({model.bias, model.embed->weight});
                              const at::NoGradGuard no_grad;
                              model.bias.add_(0.1);
                              model.embed->weight.select(0, 3).mul_(1.5);
                            }
                            run.parameters = parameters_of(model, engine);
                          });
    };
    const Outcome expected = written(Plan::zero1());
    for (const auto& [plan, share] : {std::pair(Plan::zero1(), 0.3), std::pair(Plan::zero2(), 0.7)})
      EXPECT_EQ(difference(expected, written(divided(plan, Tier::host, Tier::host, share))), "")
          << plan.label() << name(precision) << share;
  }
}

TEST_F(TwinFlow, HasTheSameBitsWhateverTheDelays) {
  const std::uint64_t seeds = std::getenv("ZERO_TEST_LONG") != nullptr ? 200 : 4;
  for (const Plan& plan :
       {divided(Plan::zero1(), Tier::host, Tier::host, 0.5), divided(Plan::zero2().bf16(), Tier::host, Tier::host, 0.5),
        divided(Plan::zero3(), Tier::host, Tier::device, 0.5)})
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(plan.label() + " on " + std::to_string(ranks));
      const auto run = [&] {
        return train<Lm>({.plan = Plan(plan).accumulate(2), .ranks = ranks, .options = {.clip = 0.5}, .joined = linked},
                         lm_on(accelerator::kType, 0.1));
      };
      accelerator::set_mode(accelerator::Mode::lazy);
      const Outcome expected = run();
      for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        accelerator::set_mode(accelerator::Mode::random, seed);
        EXPECT_EQ(difference(expected, run()), "") << "seed " << seed;
      }
    }
}

}  // namespace zero::test::twin_flow_test
