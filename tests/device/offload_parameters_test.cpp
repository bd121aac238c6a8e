// Parameters on the host and on disk of models on the simulated accelerator: the bits of the device, what is held and
// moved against the estimate, and what is waited for.
#include <gtest/gtest.h>

#include <cstdlib>

#include "covering.h"
#include "device/offloads.h"
#include "folder.h"
#include "most_moved.h"
#include "zero/error.h"

namespace zero::test::offload_parameters_test {

Plan with_parameters(const Plan& plan, Tier parameter, Tier optimizer, Tier gradient) {
  return offloaded(plan, optimizer, gradient).offload(State::parameter, parameter);
}

Plan all_on(const Plan& plan, Tier tier) {
  return with_parameters(plan, tier, tier, tier);
}

Job job_of(const Plan& plan, int ranks) {
  Job job{.plan = plan, .ranks = ranks, .options = {.clip = 1, .seed = 3}, .joined = linked};
  job.options.disk = small_disk();
  return job;
}

// Precision, ranks and those of a shard group, micro-batches, plan, tiers of parameters, optimizer and gradients.
using Where = std::tuple<Precision, std::pair<int, int>, int, Plan, Tier, Tier, Tier>;
class OffloadedParameters : public ModelsOnDevices, public testing::WithParamInterface<Where> {};

// Of a step.
void expect_moved(Job job, const Course<Lm>& course) {
  job.options.loss_scale = LossScale::fixed(64);
  expect_moved_as_estimated(job, course);
}

TEST_P(OffloadedParameters, HaveTheBitsOfTheDeviceAndMoveWhatWasForeseen) {
  const auto& [precision, mesh, accumulate, plan, parameter, optimizer, gradient] = GetParam();
  Job job = job_of(plan.precision(precision).accumulate(accumulate), mesh.first);
  job.shard = mesh.second;
  if (precision == Precision::fp16) job.options.loss_scale = LossScale{.initial = 0x1p30};  // overflows
  const Course<Lm> course = lm_on(accelerator::kType, 0.1);
  Job there = job;
  there.plan = with_parameters(job.plan, parameter, optimizer, gradient);
  const MeshShape shape = mesh.second == 0 ? MeshShape{mesh.first} : MeshShape{mesh.first, {.shard = mesh.second}};
  if (const auto faults = there.plan.faults(shape); !faults.empty()) {
    EXPECT_TRUE(says(thrown_by([&] { train<Lm>(there, course); }), {" on tier ", "needs", faults.front()}));
    return;
  }
  EXPECT_EQ(difference(train<Lm>(job, course), train<Lm>(there, course)), "");
  expect_moved(there, course);
}

std::vector<Where> places() {
  std::vector<Precision> precisions;
  for (const std::string_view name : zero::precisions()) precisions.push_back(precision_named(name));
  const std::vector tiers{Tier::device, Tier::host, Tier::disk};
  return covering(precisions, std::vector<std::pair<int, int>>{{1, 0}, {2, 0}, {4, 0}, {4, 2}}, std::vector{1, 3},
                  plans_of_meshes(), tiers, tiers, tiers);
}

std::string name_of(const testing::TestParamInfo<Where>& tested) {
  const auto& [precision, mesh, accumulate, plan, parameter, optimizer, gradient] = tested.param;
  std::string title =
      in_title(mesh.first, accumulate, precision) + "InGroupsOf" + std::to_string(mesh.second) + in_title(plan.label());
  for (const Tier tier : {parameter, optimizer, gradient}) title += in_title(std::string(name(tier)));
  return title;
}

INSTANTIATE_TEST_SUITE_P(All, OffloadedParameters, testing::ValuesIn(places()), name_of);

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
        EXPECT_GT(estimate.on(tier).parameter, 0);
        EXPECT_EQ(estimate.on(Tier::device), StateBytes{});
        EXPECT_EQ(ledger.on(tier, Owner::parameter).peak, estimate.on(tier).parameter);
        EXPECT_EQ(ledger.on(tier, Owner::optimizer).peak, estimate.on(tier).optimizer);
        EXPECT_GT(ledger.on(Tier::host, Owner::update).peak, 0);
        EXPECT_LE(ledger.on(Tier::host, Owner::update).peak, estimate.staging);
        EXPECT_EQ(ledger[Owner::parameter].peak + ledger[Owner::optimizer].peak + ledger[Owner::update].peak, 0);
        EXPECT_EQ(ledger[Owner::gathered].peak, estimate.gathered);
        EXPECT_EQ(ledger[Owner::reduction].peak, estimate.reduction);
        EXPECT_LE(ledger.peak_held, estimate.held());
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

TEST_F(Parameters, AreSavedAndLoadedByOtherTiers) {
  const std::vector<Plan> plans{Plan::zero2(), all_on(Plan::zero3(), Tier::host), all_on(Plan::zero3(), Tier::disk),
                                Plan::zero3().offload(State::parameter, Tier::host)};
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    expect_saved_and_loaded(plans, job_of(Plan::zero3().precision(precision), 2));
}

// Scopes see and write what is there, forwards without gradients bring what they use, and a module gets its values
// back.
TEST_F(Parameters, AreThereForScopesForwardsAndRelease) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::bf16_kahan})
    for (const int ranks : {1, 2}) {
      const auto seen = [&](const Plan& plan) {
        Outcome first;
        const auto run = [&](Lm& model, Engine& engine, int rank) {
          Outcome mine;
          for (int step = 0; step < 3; ++step) {
            mine.record(train_step(model, engine));
            const at::NoGradGuard no_grad;
            {
              const Gather scope({model.bias, model.embed->weight});
              model.bias.add_(0.1);
              model.embed->weight.select(0, 3).mul_(1.5);
            }
            mine.parameters["forward" + std::to_string(step)] = model.loss(7).to(at::kCPU);
          }
          engine.release();
          for (const auto& each : model.named_parameters())
            mine.parameters[each.key()] = each.value().detach().to(at::kCPU);
          if (rank == 0) first = mine;
        };
        on_ranks<Lm>(job_of(Plan(plan).precision(precision), ranks), lm_on(accelerator::kType, 0), run);
        return first;
      };
      const Outcome expected = seen(Plan::zero3());
      for (const Tier tier : {Tier::host, Tier::disk})
        EXPECT_EQ(difference(expected, seen(all_on(Plan::zero3(), tier))), "") << name(precision) << " on " << ranks;
    }
}

TEST_F(Parameters, ThatAreUnfrozenLateAreUpdated) {
  Course<Lm> course = lm_on(accelerator::kType, 0);
  course.before_step = [](Lm& model, int step) {
    if (step == 1)
      for (at::Tensor& parameter : model.fixed->parameters()) parameter.set_requires_grad(true);
  };
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::bf16_kahan}) {
    Job job = job_of(Plan::zero3().precision(precision), 2);
    const Outcome expected = train<Lm>(job, course);
    for (const Tier tier : {Tier::host, Tier::disk}) {
      job.plan = all_on(Plan::zero3().precision(precision), tier);
      EXPECT_EQ(difference(expected, train<Lm>(job, course)), "") << name(precision);
    }
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

std::vector<Plan> elsewhere() {
  return {all_on(Plan::zero3(), Tier::host), all_on(Plan::zero3().bf16(), Tier::disk),
          Plan::ddp().bf16().offload(State::parameter, Tier::host)};
}

TEST_F(Parameters, HaveTheSameBitsWhateverTheDelays) {
  const std::uint64_t seeds = long_tests() ? 100 : 3;
  const Course<Lm> course = lm_on(accelerator::kType, 0.1);
  for (const Plan& plan : elsewhere())
    for (const int ranks : {1, 2}) {
      const Job job = job_of(Plan(plan).accumulate(2), ranks);
      SCOPED_TRACE(describe(job) + " " + plan.label());
      accelerator::set_mode(accelerator::Mode::lazy);
      const Outcome expected = train<Lm>(job, course);
      for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        accelerator::set_mode(accelerator::Mode::random, seed);
        EXPECT_EQ(difference(expected, train<Lm>(job, course)), "") << "seed " << seed;
      }
    }
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

}  // namespace zero::test::offload_parameters_test
