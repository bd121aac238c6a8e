// Models on the simulated accelerator whose states are on the host and on disk: units that go stretch by stretch, what
// they take and move, what is waited for, and what cannot be there. What holds of every setting is in
// ranks/contracts_test.cpp.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "covering.h"
#include "device/offloads.h"
#include "folder.h"
#include "most_moved.h"
#include "optimizers.h"
#include "ranks/torch_optimizers.h"
#include "zero/error.h"

namespace zero::test::offload_test {

class Offloading : public ModelsOnDevices {
 protected:
  static Outcome run(const Plan& plan, int ranks = 2) {
    return train<Lm>({.plan = plan, .ranks = ranks, .options = {.clip = 0.5}, .joined = linked},
                     lm_on(accelerator::kType, 0.1));
  }
};

TEST_F(Offloading, GoesStretchByStretch) {
  const Course<Broad> course = course_on<Broad>(accelerator::kType);
  for (const int ranks : {1, 2})
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::bf16_kahan}) {
      Job job{.plan = Plan::zero2().precision(precision), .ranks = ranks, .joined = linked};
      const Outcome expected = train<Broad>(job, course);
      for (const Tier optimizer : {Tier::device, Tier::host}) {
        job.plan = offloaded(Plan::zero2().precision(precision), optimizer, Tier::host);
        EXPECT_EQ(difference(expected, train<Broad>(job, course)), "") << job.plan.label() << " on " << ranks;
      }
    }
}

std::vector<Plan> offloading_plans() {
  return {to_host(Plan::zero1()), to_host(Plan::zero2().bf16()), to_host(Plan::zero3()),
          offloaded(Plan::zero2(), Tier::device, Tier::host),
          offloaded(Plan::zero2().bf16(), Tier::host, Tier::device)};
}

TEST_F(Offloading, NeedsTheWaitsOfEverySite) {
  const bool each = std::getenv("ZERO_TEST_LONG") != nullptr;
  std::map<accelerator::Site, std::int64_t> needed;
  for (const Plan& plan : offloading_plans()) {
    accelerator::reset();
    const Outcome expected = run(plan);
    for (const auto site : {accelerator::Site::copy, accelerator::Site::finish}) {
      const auto leave_out = [&](std::optional<std::int64_t> number) {
        accelerator::reset();
        accelerator::set_race_faults(true);
        accelerator::count_faults();
        accelerator::leave_out(site, number);
        return noticed(expected, [&] { return run(plan); });
      };
      // What lies on the device in an update was waited for by the vote.
      const bool voted = plan[State::gradient].tier == Tier::device;
      EXPECT_TRUE(leave_out({}) || voted) << plan.label() << ", site " << static_cast<int>(site);
      const std::int64_t waits = each ? accelerator::waits(site) : 0;
      for (std::int64_t wait = 0; wait < waits; ++wait) needed[site] += leave_out(wait) ? 1 : 0;
    }
  }
  for (const auto& [site, waits] : needed) EXPECT_GT(waits, 20) << "site " << static_cast<int>(site);
}

TEST_F(Offloading, IsRefusedWhereItCannotBe) {
  const auto refusal = [](at::Device where, const Plan& plan, const Optimizer& optimizer) {
    return thrown_by([&] {
      torch::nn::Linear model(4, 4);
      model->to(where);
      Engine engine(*model, World(), plan, optimizer, {.disk = small_disk()});
    });
  };
  const at::Device there = accelerator::device(0);
  EXPECT_TRUE(says(refusal(at::kCPU, to_host(Plan::zero2()), AdamW{}),
                   {"gradient on tier host", "the model is on the CPU", "use Tier::disk"}));
  EXPECT_TRUE(
      says(refusal(there, Plan::zero3().offload(State::activation, Tier::host), AdamW{}), {"activation on tier host"}));
  for (const Optimizer& whole : whole_optimizers())
    for (const Plan& plan : {to_host(Plan::zero2()), offloaded(Plan::zero2(), Tier::disk, Tier::device)})
      EXPECT_TRUE(says(refusal(there, plan, whole), {std::string(name(whole)), "whole tensors", "on the device"}));
  const Optimizer torchs = brought<torch::optim::AdamW>(torch::optim::AdamWOptions(), "AdamW");
  EXPECT_TRUE(says(refusal(there, to_host(Plan::zero2()), torchs), {"optimizer AdamW", "tier host"}));
}

Plan all_on(const Plan& plan, Tier tier) {
  return offloaded(plan, tier, tier).offload(State::parameter, tier);
}

Job job_of(const Plan& plan, int ranks) {
  Job job{.plan = plan, .ranks = ranks, .options = {.clip = 1, .seed = 3}, .joined = linked};
  job.options.disk = small_disk();
  return job;
}

class Parameters : public ModelsOnDevices {};

// What is elsewhere is in no memory of the device, and what passes by is as large as was foreseen.
TEST_F(Parameters, TakeTheBytesOfTheEstimate) {
  for (const Tier tier : {Tier::host, Tier::disk})
    for (const auto& [plan, ranks] :
         {std::pair(Plan::zero3(), 2), {Plan::zero3(), 1}, {Plan::zero3().accumulate(2), 4}}) {
      Job job = job_of(all_on(plan, tier).bf16(), ranks);
      job.options.disk.checks = false;  // they take memory as the state grows
      SCOPED_TRACE(describe(job) + " " + job.plan.label());
      on_ranks<Broad>(job, course_on<Broad>(accelerator::kType), [&](Broad& model, Engine& engine, int) {
        for (int step = 0; step < 2; ++step) train_step(model, engine);
        const Ledger ledger = engine.ledger();
        const Estimate estimate = engine.estimate();
        EXPECT_GT(estimate.held.on(tier, Owner::parameter).bytes, 0);
        EXPECT_EQ(estimate.on(Tier::device), StateBytes{});
        EXPECT_EQ(ledger.on(tier, Owner::parameter).peak, estimate.held.on(tier, Owner::parameter).bytes);
        EXPECT_EQ(ledger.on(tier, Owner::optimizer).peak, estimate.held.on(tier, Owner::optimizer).bytes);
        EXPECT_GT(ledger.on(Tier::host, Owner::update).peak, 0);
        EXPECT_LE(ledger.on(Tier::host, Owner::update).peak, estimate.held.on(Tier::host, Owner::update).peak);
        EXPECT_EQ(ledger[Owner::parameter].peak + ledger[Owner::optimizer].peak + ledger[Owner::update].peak, 0);
        EXPECT_EQ(ledger[Owner::gathered].peak, estimate.held[Owner::gathered].peak);
        EXPECT_EQ(ledger[Owner::reduction].peak, estimate.held[Owner::reduction].peak);
        EXPECT_LE(ledger.peak_held, estimate.held.peak_held);
      });
    }
}

TEST_F(Parameters, GoStretchByStretch) {
  for (const Tier tier : {Tier::host, Tier::disk})
    for (const int ranks : {1, 2})
      for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::bf16_kahan}) {
        Job job = job_of(Plan::zero3().precision(precision), ranks);
        const Course<Broad> course = course_on<Broad>(accelerator::kType);
        const Outcome expected = train<Broad>(job, course);
        job.plan = all_on(job.plan, tier);
        EXPECT_EQ(difference(expected, train<Broad>(job, course)), "") << job.plan.label() << " on " << ranks;
      }
}

// What is looked at, saved and loaded is of no step.
TEST_F(Parameters, ThatAreLookedAtMoveApart) {
  const Folder folder;
  on_ranks<Lm>(job_of(all_on(Plan::zero3().bf16(), Tier::host), 1), lm_on(accelerator::kType, 0),
               [&](Lm& model, Engine& engine, int) {
                 EXPECT_EQ(engine.tier_traffic(), TierTraffic{});
                 EXPECT_GT(engine.setup_tier_traffic().on(Tier::host).total(), 0);
                 train_step(model, engine);
                 const TierTraffic first = engine.tier_traffic();
                 engine.save(folder.path());
                 engine.load(folder.path());
                 { const Gather scope = gather({model.bias}); }
                 EXPECT_EQ(engine.tier_traffic(), first);
               });
}

TEST_F(Parameters, NeedTheWaitsOfEverySite) {
  const Course<Lm> course = lm_on(accelerator::kType, 0.1);
  for (const Tier tier : {Tier::host, Tier::disk})
    for (const int ranks : {1, 2}) {
      const Job job = job_of(Plan::zero3().offload(State::parameter, tier), ranks);
      accelerator::reset();
      const Outcome expected = train<Lm>(job, course);
      for (const auto site : {accelerator::Site::copy, accelerator::Site::copied}) {
        accelerator::reset();
        accelerator::set_race_faults(true);
        accelerator::count_faults();
        accelerator::leave_out(site, {});
        EXPECT_TRUE(noticed(expected, [&] { return train<Lm>(job, course); }))
            << job.plan.label() << " on " << ranks << ", site " << static_cast<int>(site);
      }
    }
}

TEST_F(Parameters, AreRefusedWhereTheyCannotBe) {
  const auto refusal = [](at::Device where, const Plan& plan) {
    return thrown_by([&] {
      torch::nn::Linear model(4, 4);
      model->to(where);
      Engine engine(*model, World(), plan, AdamW{}, {});
    });
  };
  EXPECT_TRUE(says(refusal(at::kCPU, Plan::zero3().offload(State::parameter, Tier::host)),
                   {"parameter on tier host", "the model is on the CPU", "use Tier::disk"}));
  EXPECT_TRUE(says(refusal(accelerator::device(0), Plan::zero3().offload(State::parameter, Tier::disk)),
                   {"parameter on tier disk", "Options::disk"}));
}

Plan divided(const Plan& plan, Tier optimizer, Tier gradient, double share) {
  return plan.offload(State::optimizer, optimizer, share).offload(State::gradient, gradient);
}

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
      EXPECT_LE(ledger.on(Tier::host, Owner::update).peak, estimate.held.on(Tier::host, Owner::update).peak);
      EXPECT_EQ(ledger[Owner::update].peak, 0);
      EXPECT_EQ(ledger[Owner::parameter].bytes, here.parameter);
      EXPECT_EQ(ledger[Owner::reduction].peak, estimate.held[Owner::reduction].peak);
      EXPECT_LE(ledger.peak_held, estimate.held.peak_held);
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

Plan delayed(const Plan& plan, Tier optimizer, Tier gradient) {
  return offloaded(plan, optimizer, gradient).delay_update();
}

using DelayedOnADevice = ModelsOnDevices;

// Those of the CPU, whose optimizer is on disk.
TEST_F(DelayedOnADevice, HasTheBitsOfTheCpu) {
  std::vector<Precision> all;
  for (const std::string_view name : precisions()) all.push_back(precision_named(name));
  const std::vector<Optimizer> rules{Sgd{.lr = 0.1, .momentum = 0.9},
                                     AdamW{.lr = 2e-3, .eps = 1e-4, .weight_decay = 0.1},
                                     AdamW{.lr = 2e-3, .eps = 1e-4, .format = MomentFormat::block8}};
  for (const auto& [precision, rule, plan, ranks, accumulate, tier] :
       covering(all, std::vector<std::size_t>{0, 1, 2}, std::vector{Plan::zero1(), Plan::zero3()}, std::vector{1, 2},
                std::vector{1, 3}, std::vector{Tier::host, Tier::disk})) {
    const Plan plain = plan.precision(precision).accumulate(accumulate);
    Job job{delayed(plain, tier, Tier::host), ranks, rules[rule], {.clip = 1, .seed = 3, .disk = small_disk()}, 4};
    job.joined = linked;
    if (precision == Precision::fp16) job.options.loss_scale = LossScale{.initial = 0x1p30};  // overflows
    SCOPED_TRACE(describe(job) + " " + job.plan.label());
    const Outcome there = train<Lm>(job, lm_on(accelerator::kType, 0));
    job.plan = plain.offload(State::optimizer, Tier::disk).delay_update();
    EXPECT_EQ(difference(train<Lm>(job, lm_on(at::kCPU, 0)), there), "");
  }
}

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
      EXPECT_GT(estimate.held.on(Tier::host, Owner::parameter).bytes, 0);
      EXPECT_EQ(ledger.on(Tier::host, Owner::parameter).peak, estimate.held.on(Tier::host, Owner::parameter).bytes);
      EXPECT_EQ(ledger[Owner::parameter].peak, estimate.held.on(Tier::device, Owner::parameter).bytes);
      EXPECT_EQ(ledger.on(Tier::host, Owner::optimizer).peak, estimate.held.on(Tier::host, Owner::optimizer).bytes);
      EXPECT_EQ(ledger.on(Tier::host, Owner::gradient).peak, estimate.held.on(Tier::host, Owner::gradient).bytes);
      EXPECT_LE(ledger.peak_held, estimate.held.peak_held);
    });
    expect_moved_as_estimated(job, course);
  }
}

TEST_F(DelayedOnADevice, IsRefusedWhereGradientsAreThere) {
  Job job{.plan = Plan::zero2().offload(State::optimizer, Tier::host).delay_update(), .ranks = 1};
  EXPECT_TRUE(says(thrown_by([&] { train<Lm>(job, lm_on(accelerator::kType, 0)); }),
                   {"a delayed update reads gradients", "offload them, too"}));
}

}  // namespace zero::test::offload_test
