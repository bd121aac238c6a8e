// The dtype in which gradients travel, by choice: bytes, bits, and what is rounded.
#include <torch/torch.h>

#include <limits>
#include <set>
#include <string>

#include "folder.h"
#include "lm.h"

namespace zero::test::reduction_test {

std::int64_t reduced(const Plan& plan) {
  std::int64_t bytes = 0;
  on_ranks<Lm>({plan, 2}, {}, [&](Lm&, Engine& engine, int rank) {
    if (rank == 0) bytes = engine.estimate().wire[Collective::reduce_scatter].bytes;
  });
  return bytes;
}

TEST(ReduceIn, HalvesWhatTravels) {
  for (const Plan& plan : all_plans()) EXPECT_EQ(2 * reduced(plan.reduce_in(Dtype::bf16)), reduced(plan));
  EXPECT_EQ(reduced(Plan::zero3().bf16().reduce_in(Dtype::f32)), 2 * reduced(Plan::zero3().bf16()));
}

// What is in bf16 already is not changed by travelling in fp32, and every plan rounds what one micro-batch gave.
TEST(ReduceIn, HasTheSameBitsUnderEveryPlan) {
  const auto run = [](const Plan& plan) { return train<Lm>({plan, 4}, lm_with_dropout(0.1)); };
  EXPECT_EQ(difference(run(Plan::zero3().bf16()), run(Plan::zero3().bf16().reduce_in(Dtype::f32))), "");
  const Outcome ddp = run(Plan::ddp().reduce_in(Dtype::bf16));
  for (const Plan& plan : all_plans()) EXPECT_EQ(difference(ddp, run(plan.reduce_in(Dtype::bf16))), "") << plan.label();
  EXPECT_NE(difference(ddp, run(Plan::ddp())), "");
  EXPECT_EQ(difference(ddp, run(Plan::ddp()), 0.01), "");
}

// A small layer that is trained, and a larger one that is not when an engine is built.
struct LateLayer : torch::nn::Module {
  static constexpr std::int64_t kWide = 64;
  LateLayer()
      : small(register_module("small", torch::nn::Linear(4, 4))),
        large(register_module("large", torch::nn::Linear(kWide, kWide))) {
    thaw(false);
  }
  void thaw(bool on = true) {
    for (at::Tensor& parameter : large->parameters()) parameter.set_requires_grad(on);
  }
  at::Tensor loss(std::int64_t index) {
    return small(numbers(index, {2, 4})).square().sum() + large(numbers(index, {2, kWide})).square().sum();
  }
  torch::nn::Linear small, large;
};

// Arrays on their way are as large as the largest unit that was to be trained: this one has one of its own.
TEST(FlatGradients, HaveRoomForAUnitThatIsThawedLater) {
  for (const Plan& preset : {Plan::zero2(), Plan::zero3()})
    for (const int overlap : {1, 2}) {
      const Plan plan = preset.overlap(overlap);
      on_ranks<LateLayer>({plan, 2, Sgd{.lr = 1e-3}}, {}, [&](LateLayer& model, Engine& engine, int) {
        model.thaw();
        train_step(model, engine);
        EXPECT_GE(engine.ledger()[Owner::reduction].peak, 4 * LateLayer::kWide * LateLayer::kWide) << plan.label();
      });
    }
}

// Its codes need more memory than those of all that is trained from the start, and it has errors as those have; frozen
// again it has none.
TEST(FlatGradients, OfAUnitThatIsThawedLaterCrossInCodes) {
  const Folder folder;
  const Plan plan = Plan::zero3().reduce_in(Wire::int4).error_feedback(true);
  on_ranks<LateLayer>({.plan = plan, .ranks = 4, .optimizer = Sgd{.lr = 1e-3}, .shard = 2}, {},
                      [&](LateLayer& model, Engine& engine, int) {
                        const auto step = [&] {
                          train_step(model, engine);
                          std::set<std::string> names;
                          const EngineState state = engine.state();
                          for (const StateTensor& each : state.tensors())
                            if (each.key.kind == StateKind::error) names.insert(each.key.name);
                          return names.size();
                        };
                        const std::size_t others = step();
                        model.thaw();
                        engine.backward(model.loss(engine.micro_batch()) * std::numeric_limits<float>::infinity());
                        EXPECT_TRUE(engine.step().skipped);
                        EXPECT_NO_THROW(engine.save(folder.path(), {.frozen = false})) << "its step was skipped";
                        EXPECT_GT(step(), others);
                        model.thaw(false);
                        EXPECT_EQ(step(), others);
                      });
}

// A gradient that is known: the data, once in 16 bits and once in full precision.
struct Known : torch::nn::Module {
  Known()
      : narrow(register_parameter("narrow", torch::ones({700}))), wide(register_parameter("wide", torch::ones(90))) {}
  at::Tensor loss(std::int64_t index) {
    const auto product = [&](const at::Tensor& weights) {
      return (weights * numbers(index, weights.sizes()).to(weights.scalar_type())).to(at::kFloat).sum();
    };
    return product(narrow) + product(wide);
  }
  at::Tensor narrow, wide;
};

at::Tensor mean_gradient(int ranks, std::int64_t numel, at::ScalarType dtype) {
  at::Tensor sum = torch::zeros({numel}, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) sum += numbers(rank, {numel}).to(dtype).to(at::kDouble);
  return sum / ranks;
}

// The mean over ranks, whose sum is not rounded to 16 bits: once, when it is held.
TEST(GradientsIn16Bits, AreTheMeanRoundedOnce) {
  constexpr int ranks = 3;
  const auto wide = [](const ParameterInfo& info) { return info.name == "wide"; };
  for (const double clip : {0.0, 2.0})
    for (const auto& [precision, dtype, unit] :
         {std::tuple{Precision::bf16, at::kBFloat16, 0x1p-8}, std::tuple{Precision::fp16, at::kHalf, 0x1p-11}})
      for (const Plan& plan : all_plans()) {
        SCOPED_TRACE(plan.label() + " " + std::string(name(precision)) + " clip " + std::to_string(clip));
        const Options options{.clip = clip, .full_precision = wide, .loss_scale = LossScale::fixed(1)};
        on_ranks<Known>(
            {plan.precision(precision), ranks, Sgd{.lr = 1}, options}, {}, [&](Known& model, Engine& engine, int) {
              const auto before = parameters_of(model, engine);
              const StepReport report = train_step(model, engine);
              const auto after = parameters_of(model, engine);
              const at::Tensor narrow = mean_gradient(ranks, 700, dtype), full = mean_gradient(ranks, 90, at::kFloat);
              const double norm = std::sqrt((narrow.square().sum() + full.square().sum()).item<double>());
              EXPECT_NEAR(report.grad_norm / norm, 1, unit);
              const double factor = clip > 0 ? clip / report.grad_norm : 1;
              const auto error = [&](const std::string& name, const at::Tensor& mean) {
                const at::Tensor moved = before.at(name).to(at::kDouble) - after.at(name).to(at::kDouble);
                return (moved / factor - mean).abs();
              };
              EXPECT_TRUE((error("narrow", narrow) <= 1.001 * unit * narrow.abs() + 1e-6).all().item<bool>());
              EXPECT_LT(error("wide", full).max().item<double>(), 1e-6);
            });
      }
}

TEST(ReduceIn, RefusesWhatIsNoFloatingPointFormatOfTheWire) {
  EXPECT_THROW(Plan::zero3().reduce_in(Dtype::i32).validate(2), ConfigError);
  EXPECT_THROW(Plan::zero3().reduce_in(Dtype::f64).validate(2), ConfigError);
  EXPECT_THROW(Plan::zero3().reproducible(true).reduce_in(Dtype::bf16).validate(2), ConfigError);
}

}  // namespace zero::test::reduction_test
