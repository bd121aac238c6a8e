// Precisions: bytes a parameter, what is kept in full, what becomes of small updates, and scales of losses.
#include <torch/torch.h>

#include "lm.h"

namespace zero::test::precisions_test {

std::vector<Precision> every_precision() {
  std::vector<Precision> all;
  for (const std::string_view name : precisions()) all.push_back(precision_named(name));
  return all;
}

// One large matrix, so that padding does not count.
struct Square : torch::nn::Module {
  Square() { register_module("linear", linear); }
  at::Tensor loss(std::int64_t index) { return linear(numbers(index, {2, 512})).to(at::kFloat).square().mean(); }
  torch::nn::Linear linear{torch::nn::LinearOptions(512, 512).bias(false)};
};

double optimizer_bytes_per_parameter(const Optimizer& optimizer, Precision precision) {
  double bytes = 0;
  on_ranks<Square>({Plan::ddp().precision(precision), 1, optimizer}, {}, [&](Square& model, Engine& engine, int) {
    train_step(model, engine);
    bytes = static_cast<double>(engine.ledger()[Owner::optimizer].bytes) / static_cast<double>(512 * 512);
  });
  return bytes;
}

TEST(OptimizerBytes, AreThePapersK) {
  const AdamW in_bf16{.format = MomentFormat::bf16}, in_8_bits{.format = MomentFormat::block8};
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    EXPECT_EQ(optimizer_bytes_per_parameter(Sgd{}, precision), 4);
    EXPECT_EQ(optimizer_bytes_per_parameter(Sgd{.momentum = 0.9}, precision), 8);
    EXPECT_EQ(optimizer_bytes_per_parameter(AdaGrad{}, precision), 8);
    EXPECT_EQ(optimizer_bytes_per_parameter(RmsProp{}, precision), 8);
    EXPECT_EQ(optimizer_bytes_per_parameter(Lion{}, precision), 8);
    EXPECT_EQ(optimizer_bytes_per_parameter(Adam{}, precision), 12);
    EXPECT_EQ(optimizer_bytes_per_parameter(AdamW{}, precision), 12);
    EXPECT_LE(optimizer_bytes_per_parameter(in_8_bits, precision), 6.1);
  }
  EXPECT_EQ(optimizer_bytes_per_parameter(in_bf16, Precision::bf16_sr), 4);
  EXPECT_EQ(optimizer_bytes_per_parameter(in_bf16, Precision::bf16_kahan), 6);
  EXPECT_EQ(optimizer_bytes_per_parameter(Sgd{}, Precision::bf16_pure), 0);
}

TEST(FullPrecision, IsKeptForTheParametersChosen) {
  Job job{.ranks = 3, .options = {.full_precision = norms}};
  for (const Precision precision : {Precision::bf16, Precision::fp16, Precision::bf16_sr}) {
    job.plan = Plan::ddp().precision(precision);
    const Outcome ddp = train<Lm>(job);
    for (const auto& [name, value] : ddp.parameters) {
      if (name.find("stored") == std::string::npos) continue;
      const bool norm = name.find("norm") != std::string::npos;
      EXPECT_EQ(value.scalar_type() == at::kFloat, norm) << name;
    }
    under_every_plan(job, [&](const Job& each) { EXPECT_EQ(difference(ddp, train<Lm>(each)), ""); });
  }
}

// A gradient of 1 for every weight.
struct Slope : torch::nn::Module {
  Slope() : weight(register_parameter("weight", torch::ones({4096}))) {}
  at::Tensor loss(std::int64_t) { return weight.sum(); }
  at::Tensor weight;
};

double mean_after_small_updates(Precision precision) {
  double mean = 0;
  const Course<Slope> course;
  run_ranks(2, [&](const World& world) {
    const auto model = std::make_shared<Slope>();
    Engine engine(*model, world, Plan::zero3().precision(precision), Sgd{.lr = 1e-4});
    for (int step = 0; step < 1000; ++step) train_step(*model, engine);
    const at::Tensor weight = engine.main_parameter(model->weight);
    if (world.rank() == 0) mean = weight.mean().item<double>();
  });
  return mean;
}

// 1000 times 1e-4, each less than half a step of bf16 near 1.
TEST(SmallUpdates, AreLostOnlyInPureBf16) {
  EXPECT_EQ(mean_after_small_updates(Precision::bf16_pure), 1);
  EXPECT_NEAR(mean_after_small_updates(Precision::bf16), 0.9, 1e-4);
  EXPECT_NEAR(mean_after_small_updates(Precision::bf16_kahan), 0.9, 4e-3);
  EXPECT_NEAR(mean_after_small_updates(Precision::bf16_sr), 0.9, 4e-3);
}

// Its loss is infinite on rank 1 at the steps told.
struct Overflowing : torch::nn::Module {
  Overflowing() { register_module("linear", linear); }
  at::Tensor loss(double factor) { return linear(torch::ones({2, 8})).square().mean() * factor; }
  torch::nn::Linear linear{8, 8};
};

class LossScales : public testing::TestWithParam<Precision> {
 protected:
  // The scale of the step after each, and whether each was skipped as it had to be.
  static void expect(const LossScale& policy, const std::vector<bool>& overflows, const std::vector<double>& scales) {
    for (const Plan& preset : all_plans()) {
      SCOPED_TRACE(preset.label());
      run_ranks(2, [&](const World& world) {
        Overflowing model;
        Engine engine(model, world, preset.precision(GetParam()), AdamW{}, {.loss_scale = policy});
        std::int64_t skipped = 0;
        for (std::size_t step = 0; step < overflows.size(); ++step) {
          const bool here = overflows[step] && world.rank() == 1;
          engine.backward(model.loss(here ? std::numeric_limits<double>::infinity() : 1.0));
          const double before = engine.loss_scale();
          const StepReport report = engine.step();
          skipped += overflows[step];
          EXPECT_EQ(report.skipped, overflows[step]) << step;
          EXPECT_EQ(report.loss_scale, before);
          EXPECT_EQ(engine.loss_scale(), scales[step]) << step;
          EXPECT_EQ(engine.skipped_steps(), skipped);
          EXPECT_TRUE(engine.main_parameter(model.linear->weight).isfinite().all().item<bool>());
        }
      });
    }
  }
};

TEST_P(LossScales, DoubleEachWindowWithoutOverflow) {
  expect({.initial = 256, .window = 2}, std::vector<bool>(6, false), {256, 512, 512, 1024, 1024, 2048});
}

TEST_P(LossScales, HalveToTheFloorWhenAllOverflow) {
  expect({.initial = 256}, std::vector<bool>(8, true), {128, 64, 32, 16, 8, 4, 2, 1});
}

TEST_P(LossScales, FollowSomeOverflow) {
  expect({.initial = 256, .window = 2}, {true, true, false, false, false, true, false, false},
         {128, 64, 64, 128, 128, 64, 64, 128});
}

TEST_P(LossScales, StayWhereTheyAreFixed) {
  expect(LossScale::fixed(1024), {true, false, true}, {1024, 1024, 1024});
}

TEST_P(LossScales, ChangeNoBits) {
  const auto run = [&](double scale) {
    return train<Lm>(
        {Plan::zero3().precision(GetParam()), 2, AdamW{}, {.clip = 1, .loss_scale = LossScale::fixed(scale)}, 4});
  };
  if (GetParam() == Precision::fp16) {
    EXPECT_EQ(difference(run(1024), run(2048), 2e-3), "");  // gradients near nothing are rounded otherwise
  } else {
    EXPECT_EQ(difference(run(1), run(65536)), "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, LossScales, testing::Values(Precision::fp32, Precision::bf16, Precision::fp16),
                         [](const auto& tested) { return std::string(name(tested.param)); });

TEST(LossScales, EndOnEveryRankAtTheFloor) {
  EXPECT_THROW(run_ranks(2,
                         [](const World& world) {
                           Overflowing model;
                           Engine engine(model, world, Plan::zero3().precision(Precision::fp16), AdamW{},
                                         {.loss_scale = LossScale{.initial = 1}});
                           engine.backward(model.loss(std::numeric_limits<double>::infinity()));
                           engine.step();
                         }),
               RankError);
}

// Whoever hears of it may go on: nothing of the step is left.
TEST(LossScales, LeaveNothingOfTheStepAtTheFloor) {
  run_ranks(2, [](const World& world) {
    Overflowing model;
    Engine engine(model, world, Plan::zero3().precision(Precision::fp16).accumulate(2).reproducible(true), AdamW{},
                  {.loss_scale = LossScale{.initial = 1}});
    const auto step = [&](double factor) {
      for (int micro = 0; micro < 2; ++micro) engine.backward(model.loss(factor));
      return engine.step();
    };
    EXPECT_THROW(step(std::numeric_limits<double>::infinity()), StateError);
    EXPECT_TRUE(step(1).applied);
  });
}

TEST(LossScales, AreDynamicInFp16AndNoneElsewhere) {
  run_ranks(1, [](const World& world) {
    for (const Precision precision : every_precision()) {
      Overflowing model;
      const Engine engine(model, world, Plan::ddp().precision(precision), AdamW{});
      EXPECT_EQ(engine.loss_scale(), precision == Precision::fp16 ? 65536 : 1);
    }
  });
}

}  // namespace zero::test::precisions_test
