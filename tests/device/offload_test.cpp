// States on the host and on disk of models on the simulated accelerator: the bits of the device, what is waited for,
// and what cannot be there.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <numeric>

#include "covering.h"
#include "device/offloads.h"
#include "optimizers.h"
#include "ranks/torch_optimizers.h"
#include "zero/error.h"

namespace zero::test::offload_test {

// One of each number and format of moments.
std::vector<Optimizer> elementwise() {
  std::vector<Optimizer> all{Sgd{.lr = 0.1}, Lion{.lr = 1e-3, .weight_decay = 0.1},
                             AdaGrad{.lr = 2e-2, .lr_decay = 0.1, .initial_accumulator_value = 0.1, .eps = 1e-4},
                             AdamW{.lr = 2e-3, .eps = 1e-4, .weight_decay = 0.1},
                             RmsProp{.lr = 2e-3, .eps = 1e-2, .momentum = 0.5, .centered = true}};
  for (const Optimizer& narrow : narrow_moments()) all.push_back(narrow);
  return all;
}

// Optimizer, precision, ranks, micro-batches, plan, tiers of what the optimizer keeps and of gradients.
using Where = std::tuple<std::size_t, Precision, int, int, Plan, Tier, Tier>;
class OffloadedStates : public ModelsOnDevices, public testing::WithParamInterface<Where> {};

TEST_P(OffloadedStates, HaveTheBitsOfTheDevice) {
  const auto& [which, precision, ranks, accumulate, plan, optimizer, gradient] = GetParam();
  Job job{plan.precision(precision).accumulate(accumulate), ranks, elementwise()[which], {.clip = 1, .seed = 3}, 3};
  job.options.disk = small_disk();
  job.joined = linked;
  if (precision == Precision::fp16) job.options.loss_scale = LossScale{.initial = 0x1p30};  // overflows
  const Course<Lm> course = lm_on(accelerator::kType, 0.1);
  const Outcome expected = train<Lm>(job, course);
  job.plan = offloaded(job.plan, optimizer, gradient);
  if (!job.plan.faults(MeshShape{ranks}).empty()) {
    EXPECT_TRUE(says(thrown_by([&] { train<Lm>(job, course); }), {"gradient on tier", "needs gradients sharded"}));
    return;
  }
  EXPECT_EQ(difference(expected, train<Lm>(job, course)), "");
}

std::vector<Where> places() {
  std::vector<std::size_t> all(elementwise().size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<Precision> precisions;
  for (const std::string_view name : zero::precisions()) precisions.push_back(precision_named(name));
  const std::vector tiers{Tier::device, Tier::host, Tier::disk};
  return covering(all, precisions, std::vector{1, 2, 4}, std::vector{1, 3}, all_plans(), tiers, tiers);
}

std::string name_of(const testing::TestParamInfo<Where>& tested) {
  const auto& [which, precision, ranks, accumulate, plan, optimizer, gradient] = tested.param;
  return std::to_string(which) + in_title(std::string(name(elementwise()[which]))) +
         in_title(ranks, accumulate, precision) + in_title(plan.label()) + in_title(std::string(name(optimizer))) +
         in_title(std::string(name(gradient)));
}

INSTANTIATE_TEST_SUITE_P(All, OffloadedStates, testing::ValuesIn(places()), name_of);

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

TEST_F(Offloading, IsSavedAndLoadedByOtherTiers) {
  const std::vector<Plan> plans{Plan::zero2(), to_host(Plan::zero3()),
                                offloaded(Plan::zero2(), Tier::disk, Tier::host)};
  Job job{.plan = Plan::zero2().bf16(), .ranks = 2, .joined = linked};
  job.options.disk = small_disk();
  expect_saved_and_loaded(plans, job);
}

// Scopes see and write what the device has, and main weights of the host follow.
TEST_F(Offloading, HasTheScopesOfTheDevice) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::bf16_kahan}) {
    const auto written = [&](const Plan& plan) {
      return train_by<Lm>({.plan = Plan(plan).precision(precision), .ranks = 2, .joined = linked},
                          lm_on(accelerator::kType, 0), [](Lm& model, Engine& engine, Outcome& run, int) {
                            for (int step = 0; step < 3; ++step) {
                              run.record(train_step(model, engine));
                              const Gather scope({model.bias, model.embed->weight});
                              const at::NoGradGuard no_grad;
                              model.bias.add_(0.1);
                              model.embed->weight.select(0, 3).mul_(1.5);
                            }
                            run.parameters = parameters_of(model, engine);
                          });
    };
    for (const Plan& plan : {Plan::zero2(), Plan::zero3()})
      EXPECT_EQ(difference(written(plan), written(to_host(plan))), "") << name(precision);
  }
}

// A unit that is trained from the second step on gets its first state while others' are on their way.
TEST_F(Offloading, TakesUnitsThatAreUnfrozenLate) {
  Course<Lm> course = lm_on(accelerator::kType, 0);
  course.before_step = [](Lm& model, int step) {
    if (step == 1)
      for (at::Tensor& parameter : model.fixed->parameters()) parameter.set_requires_grad(true);
  };
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::bf16_kahan}) {
    Job job{.plan = Plan::zero2().precision(precision), .ranks = 2, .joined = linked};
    const Outcome expected = train<Lm>(job, course);
    job.plan = to_host(job.plan);
    EXPECT_EQ(difference(expected, train<Lm>(job, course)), "") << name(precision);
  }
}

// More backwards than were planned.
TEST_F(Offloading, AddsUpLossesThatGoBackwardOneByOne) {
  for (const Plan& plan : {Plan::zero1(), Plan::zero2()})
    for (const int ranks : {1, 2}) {
      const auto trained = [&](const Plan& each) {
        return train_by<Lm>({.plan = Plan(each).bf16(), .ranks = ranks, .joined = linked}, lm_on(accelerator::kType, 0),
                            [](Lm& model, Engine& engine, Outcome& run, int) {
                              for (int step = 0; step < 2; ++step) {
                                for (int loss = 0; loss < 3; ++loss) engine.backward(model.loss(3 * step + loss));
                                run.record(engine.step());
                              }
                              run.parameters = parameters_of(model, engine);
                            });
      };
      EXPECT_EQ(difference(trained(plan), trained(to_host(plan))), "") << plan.label() << " on " << ranks;
    }
}

std::vector<Plan> offloading_plans() {
  return {to_host(Plan::zero1()), to_host(Plan::zero2().bf16()), to_host(Plan::zero3()),
          offloaded(Plan::zero2(), Tier::device, Tier::host),
          offloaded(Plan::zero2().bf16(), Tier::host, Tier::device)};
}

TEST_F(Offloading, HasTheSameBitsWhateverTheDelays) {
  const std::uint64_t seeds = std::getenv("ZERO_TEST_LONG") != nullptr ? 200 : 4;
  for (const Plan& plan : offloading_plans())
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(plan.label() + " on " + std::to_string(ranks));
      accelerator::set_mode(accelerator::Mode::lazy);
      const Outcome expected = run(Plan(plan).accumulate(2), ranks);
      for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        accelerator::set_mode(accelerator::Mode::random, seed);
        EXPECT_EQ(difference(expected, run(Plan(plan).accumulate(2), ranks)), "") << "seed " << seed;
      }
    }
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

}  // namespace zero::test::offload_test
