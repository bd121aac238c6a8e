// Engines on the simulated accelerator: the same bits under every plan, however late the device works.
#include <gtest/gtest.h>

#include "device/engines.h"
#include "folder.h"
#include "ranks/torch_optimizers.h"
#include "zero/error.h"

namespace zero::test::engine_test {

// How far the device's own operators may be from the CPU's, which add up in other orders.
double tolerance(Precision precision) {
  return precision == Precision::fp32 ? 1e-5 : 3e-2;
}

using Setting = std::tuple<int, int, Precision>;
class EnginesOnADevice : public ModelsOnDevices, public testing::WithParamInterface<Setting> {
 protected:
  static Job job() {
    const auto [ranks, accumulate, precision] = GetParam();
    return {.plan = Plan::ddp().precision(precision).accumulate(accumulate), .ranks = ranks};
  }
};

TEST_P(EnginesOnADevice, HaveTheSameBitsUnderEveryPlan) {
  const Course<Lm> course = lm_on(accelerator::kType, 0.2);
  const Outcome expected = train<Lm>(job(), course);
  under_every_plan(job(), [&](const Job& each) { EXPECT_EQ(difference(expected, train<Lm>(each, course)), ""); });
}

TEST_P(EnginesOnADevice, TrainAsOnTheCpu) {
  const Outcome expected = train<Lm>(job(), lm_on(at::kCPU, 0));
  const Outcome run = train<Lm>(job(), lm_on(accelerator::kType, 0));
  EXPECT_EQ(difference(expected, run, tolerance(std::get<Precision>(GetParam()))), "");
}

// Whatever the device has done by the time it is asked.
TEST_P(EnginesOnADevice, HaveTheSameBitsOnADeviceThatIsNeverLate) {
  Job zero3 = job();
  zero3.plan = Plan::zero3().precision(zero3.plan.precision()).accumulate(zero3.plan.accumulate());
  const Course<Lm> course = lm_on(accelerator::kType, 0.2);
  const Outcome late = train<Lm>(zero3, course);
  accelerator::set_mode(accelerator::Mode::eager);
  EXPECT_EQ(difference(late, train<Lm>(zero3, course)), "");
}

std::string title(const testing::TestParamInfo<Setting>& tested) {
  const auto& [ranks, accumulate, precision] = tested.param;
  return in_title(ranks, accumulate, precision);
}

INSTANTIATE_TEST_SUITE_P(All, EnginesOnADevice,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(1, 2),
                                          testing::Values(Precision::fp32, Precision::bf16, Precision::fp16,
                                                          Precision::fp8, Precision::bf16_pure, Precision::bf16_kahan)),
                         title);

TEST_F(ModelsOnDevices, AreRefusedInHalves) {
  auto model = std::make_shared<Lm>();
  model->to(accelerator::device(0));
  model->norm->to(at::kCPU);
  const std::string fault = thrown_by([&] { Engine engine(*model, World(), Plan::ddp(), AdamW{}); });
  EXPECT_TRUE(says(fault, {"'norm.weight'", "'cpu'", "accelerator:0", "move the whole module"}));
}

TEST_F(ModelsOnDevices, AreOfOneKindOnAllRanks) {
  run_ranks(
      2,
      [](const World& world) {
        auto model = std::make_shared<Lm>();
        if (world.rank() == 1) model->to(accelerator::device(0));
        const std::string fault = thrown_by([&] { Engine engine(*model, world, Plan::ddp(), AdamW{}); });
        EXPECT_TRUE(says(fault, {"kind cpu", "kind accelerator", "rank 1"}));
      },
      kToDisagree);
}

// Operators that take no generator, as dropout's on devices, draw one after the other, and leave the program's alone.
TEST_F(ModelsOnDevices, DrawAnewForEachOperator) {
  const Course<Lm> course = lm_on(accelerator::kType, 0);
  on_ranks<Lm>({.plan = Plan::zero3(), .ranks = 1}, course, [](Lm& model, Engine& engine, int) {
    const at::Device device = model.bias.device();
    at::Generator program = at::globalContext().defaultGenerator(device);
    const at::Tensor state = program.get_state();
    const auto dropped = [&] { return torch::dropout(model.bias + 1, 0.5, /*train=*/true); };
    const at::Tensor first = dropped(), second = dropped();
    EXPECT_FALSE(at::equal(first.detach().cpu(), second.detach().cpu()));
    EXPECT_TRUE(at::equal(program.get_state(), state));
    engine.backward((first + second).sum());
    engine.discard();
    EXPECT_TRUE(at::equal(dropped().detach().cpu(), first.detach().cpu()));
  });
}

class CheckpointsOfDevices : public ModelsOnDevices, public testing::WithParamInterface<Optimizer> {};

// A checkpoint goes from the device to the CPU and back; scopes see and write what the device has.
TEST_P(CheckpointsOfDevices, AreLoadedByTheCpuToo) {
  const Folder folder;
  const Job job{.plan = Plan::zero3().bf16(), .ranks = 1, .optimizer = GetParam()};
  std::map<std::string, at::Tensor> saved, loaded;
  on_ranks<Lm>(job, lm_on(accelerator::kType, 0), [&](Lm& model, Engine& engine, int) {
    train_step(model, engine);
    {
      const Gather scope({model.bias});
      const at::NoGradGuard no_grad;
      model.bias.add_(1);
    }
    train_step(model, engine);
    engine.save(folder.path(), {.background = true});
    engine.finish_save();
    saved = parameters_of(model, engine);
  });
  for (const at::DeviceType kind : {at::kCPU, accelerator::kType}) {
    on_ranks<Lm>(job, lm_on(kind, 0), [&](Lm& model, Engine& engine, int) {
      engine.load(folder.path());
      loaded = parameters_of(model, engine);
      EXPECT_TRUE(train_step(model, engine).applied);
    });
    for (const auto& [name, values] : saved) EXPECT_TRUE(at::equal(values, loaded.at(name))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointsOfDevices,
                         testing::Values(AdamW{.lr = 2e-3, .eps = 1e-4},
                                         brought<torch::optim::AdamW>(torch::optim::AdamWOptions().eps(1e-4), "AdamW")),
                         [](const auto& tested) { return tested.index == 0 ? "Ours" : "LibTorchs"; });

TEST_F(ModelsOnDevices, KeepTheirValuesBehindTheEngine) {
  auto model = std::make_shared<Lm>();
  model->to(accelerator::device(0));
  const at::Tensor before = model->norm->weight.detach().cpu().clone();
  {
    Engine engine(*model, World(), Plan::zero3(), AdamW{});
    engine.release();
  }
  EXPECT_TRUE(at::equal(model->norm->weight.detach().cpu(), before));
  EXPECT_EQ(model->norm->weight.device(), accelerator::device(0));
}

// A step that fails for want of memory, wherever it does, is dropped and done again where there is more.
TEST_F(ModelsOnDevices, GoOnWhenMemoryHadEnded) {
  constexpr std::int64_t kPlenty = std::int64_t{1} << 40;
  int failures = 0;
  for (const Plan& plan : all_plans()) {
    SCOPED_TRACE(plan.label());
    const Job job{.plan = plan.accumulate(2), .ranks = 1};
    const Course<Lm> course = lm_on(accelerator::kType, 0.2);
    const Outcome expected = train<Lm>(job, course);
    on_ranks<Lm>(job, course, [&](Lm& model, Engine& engine, int) {
      Outcome run;
      const c10::DeviceIndex device = model.bias.device().index();
      for (std::int64_t room = 0; run.losses.size() < expected.losses.size(); room += 4096) {
        accelerator::set_capacity(device, accelerator::statistics(device).allocated + room);
        try {
          run.record(train_step(model, engine));
          room = 0;
        } catch (const OutOfMemoryError& error) {
          EXPECT_TRUE(says(error.what(), {"rank 0", "accelerator", "no memory left", plan.label(), "discard()"}));
          engine.discard();
          ++failures;
        } catch (const c10::OutOfMemoryError&) {
          engine.discard();  // what the program does outside of forward and backward is its own
        }
        accelerator::set_capacity(device, kPlenty);
      }
      run.parameters = parameters_of(model, engine);
      EXPECT_EQ(difference(expected, run), "");
    });
  }
  EXPECT_GT(failures, 20);
}

}  // namespace zero::test::engine_test
