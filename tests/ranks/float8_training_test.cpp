// Linear layers in FP8: exact products of the rounded operands, scales that all ranks agree on, and what is refused.
#include <torch/torch.h>

#include <cmath>

#include "lm.h"

namespace zero::test::float8_training_test {

constexpr std::int64_t kIn = 40, kOut = 24, kRows = 6;

struct OneLayer : torch::nn::Module {
  explicit OneLayer(bool bias = true)
      : layer(register_module("layer", torch::nn::Linear(torch::nn::LinearOptions(kIn, kOut).bias(bias)))) {
    to(device_of_rank());
  }
  static at::Tensor input(std::int64_t index) { return numbers(index, {2, kRows / 2, kIn}) * 3; }
  static at::Tensor weights_of_output(std::int64_t index) { return numbers(50 + index, {2, kRows / 2, kOut}) * 1e-3; }
  at::Tensor loss(std::int64_t index) { return (layer(input(index)).to(at::kFloat) * weights_of_output(index)).sum(); }
  torch::nn::Linear layer;
};

// Rounded by LibTorch's own conversion, in double.
at::Tensor rounded(const at::Tensor& values, at::ScalarType format, double largest) {
  const double scale = std::exp2(std::floor(std::log2(largest / values.abs().max().item<double>())));
  return (values.to(at::kFloat) * scale).to(format).to(at::kDouble) / scale;
}

at::Tensor in_e4m3(const at::Tensor& values) {
  return rounded(values, at::kFloat8_e4m3fn, 448);
}

at::Tensor in_bf16(const at::Tensor& values) {
  return values.to(at::kBFloat16).to(at::kDouble);
}

void expect_bf16_of(const at::Tensor& exact, const at::Tensor& computed) {
  const double error = ((computed.to(at::kDouble) - exact).abs() / exact.abs().clamp_min(1e-6)).max().item<double>();
  EXPECT_LE(error, 0.004);  // half a step of bf16 is up to 2^-9, and sums are in fp32
}

TEST(Float8Linear, MultipliesRoundedInputsAndWeights) {
  for (const bool bias : {false, true})
    run_ranks(1, [&](const World& world) {
      OneLayer model(bias);
      initialise(model, kSeed);
      const at::Tensor weight = in_bf16(model.layer->weight.detach());
      const at::Tensor added = bias ? in_bf16(model.layer->bias.detach()) : at::zeros({kOut}, weight.options());
      Engine engine(model, world, Plan::zero3().precision(Precision::fp8), Sgd{.lr = 1});
      const at::Tensor x = OneLayer::input(1).flatten(0, 1);
      // Of two dimensions LibTorch's layer is one operator; of three it adds the bias to what was rounded.
      const at::Tensor y = model.layer(bias ? x : OneLayer::input(1)).flatten(0, -2);
      expect_bf16_of(at::mm(in_e4m3(x), in_e4m3(weight).t()) + added, y);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    });
}

// Of which SGD with a learning rate of 1 leaves the difference of the weights.
TEST(Float8Linear, MultipliesRoundedGradients) {
  run_ranks(1, [](const World& world) {
    OneLayer model;
    initialise(model, kSeed);
    Engine engine(model, world, Plan::zero3().precision(Precision::fp8), Sgd{.lr = 1});
    const at::Tensor weight = engine.main_parameter(model.layer->weight);
    const at::Tensor bias = engine.main_parameter(model.layer->bias);
    const at::Tensor x = OneLayer::input(0).flatten(0, 1);
    const at::Tensor g = in_bf16(OneLayer::weights_of_output(0).flatten(0, 1));
    train_step(model, engine);
    const at::Tensor expected = at::mm(rounded(g, at::kFloat8_e5m2, 57344).t(), in_e4m3(x));
    const at::Tensor moved = (weight - engine.main_parameter(model.layer->weight)).to(at::kDouble);
    EXPECT_LE((moved - expected).abs().max().item<double>(), 0.005 * expected.abs().max().item<double>());
    const at::Tensor moved_bias = (bias - engine.main_parameter(model.layer->bias)).to(at::kDouble);
    EXPECT_LE((moved_bias - g.sum(0)).abs().max().item<double>(), 0.005 * g.sum(0).abs().max().item<double>());
  });
}

// Every form in which LibTorch has a linear layer, and those in which what is added is no bias.
TEST(Float8Linear, ComesInSeveralForms) {
  run_ranks(1, [](const World& world) {
    OneLayer model(/*bias=*/false);
    initialise(model, kSeed);
    Engine engine(model, world, Plan::zero3().precision(Precision::fp8), Sgd{.lr = 1});
    const at::Tensor& w = model.layer->weight;
    const at::Tensor x = OneLayer::input(1).flatten(0, 1);
    const at::Tensor y = at::mm(x, w.t());
    EXPECT_TRUE(at::equal(at::linear(x, w, at::Tensor()), y));
    EXPECT_TRUE(at::equal(at::matmul(x, w.t()), y));
    EXPECT_TRUE(at::equal(at::matmul(x[0], w.t()), y[0]));
    const at::Tensor more = numbers(5, {kRows, kOut}).to(at::kBFloat16).requires_grad_(true);
    engine.backward(at::addmm(more, x.to(at::kBFloat16), w.t()).to(at::kFloat).sum() + at::mm(x, w.t()).sum());
    EXPECT_EQ(more.grad().sizes(), more.sizes());
  });
}

TEST(Float8Linear, HasNoSecondDerivative) {
  run_ranks(1, [](const World& world) {
    OneLayer model;
    Engine engine(model, world, Plan::zero3().precision(Precision::fp8), Sgd{.lr = 1});
    const at::Tensor x = OneLayer::input(1).requires_grad_(true);
    const at::Tensor y = model.layer(x).sum();
    EXPECT_THROW(torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true), StateError);
  });
}

Job job_in_fp8(Scaling scaling, const Plan& plan, int ranks) {
  Job job{plan.precision(Precision::fp8), ranks};
  job.options = {.clip = 1, .seed = 3, .float8 = {.scaling = scaling, .history = 2}};
  job.steps = 6;
  return job;
}

TEST(Float8Training, HasTheBitsOfOneProcessWithBothScalings) {
  for (const Scaling scaling : {Scaling::current, Scaling::delayed}) {
    const auto run = [&](const Plan& plan, int ranks) {
      return train<Lm>(job_in_fp8(scaling, plan.accumulate(4 / ranks).reproducible(true), ranks), lm_with_dropout(0.1));
    };
    const Outcome alone = run(Plan::ddp(), 1);
    for (const int ranks : {1, 2, 4})
      for (const Plan& plan : all_plans()) EXPECT_EQ(difference(alone, run(plan, ranks)), "") << plan.label() << ranks;
  }
}

TEST(Float8Training, DelayedScalesAreThoseOfEarlierSteps) {
  const auto losses = [](Scaling scaling) { return train<Lm>(job_in_fp8(scaling, Plan::ddp(), 2)).losses; };
  const std::vector<double> current = losses(Scaling::current), delayed = losses(Scaling::delayed);
  EXPECT_EQ(current[0], delayed[0]);
  EXPECT_NE(current, delayed);
}

TEST(Float8Training, SendsWhatIsEstimated) {
  for (const Scaling scaling : {Scaling::current, Scaling::delayed})
    for (const Plan& plan : all_plans())
      on_ranks<Lm>(job_in_fp8(scaling, plan, 3), {}, [](Lm& model, Engine& engine, int) {
        for (int step = 0; step < 2; ++step) train_step(model, engine);
        engine.reset_traffic();
        train_step(model, engine);
        EXPECT_TRUE(engine.traffic() == engine.estimate().wire);
      });
}

TEST(Float8Training, AnOverflowSkipsTheStep) {
  struct Infinite : Lm {
    at::Tensor loss(std::int64_t index) {
      return Lm::loss(index) * (index == 1 ? std::numeric_limits<double>::infinity() : 1);
    }
  };
  on_ranks<Infinite>(job_in_fp8(Scaling::delayed, Plan::zero2(), 2), {}, [](Infinite& model, Engine& engine, int) {
    EXPECT_TRUE(train_step(model, engine).skipped);
    EXPECT_TRUE(train_step(model, engine).applied);
  });
}

TEST(Float8Training, RefusesAModelInWhichItTakesNothing) {
  run_ranks(2, [](const World& world) {
    Lm model;
    const Float8 nothing{.takes = [](const ParameterInfo&) { return false; }};
    EXPECT_THROW(Engine(model, world, Plan::zero3().precision(Precision::fp8), AdamW{}, {.float8 = nothing}),
                 ConfigError);
  });
}

// Taken, but not multiplied with by a linear layer: it would stay in bf16 unnoticed.
TEST(Float8Training, RefusesAParameterThatNoLinearLayerUses) {
  struct Elementwise : Lm {
    Elementwise() { register_parameter("scale", torch::ones({3, 4})); }
    at::Tensor loss(std::int64_t index) { return Lm::loss(index) * named_parameters()["scale"].mean(); }
  };
  run_ranks(2, [](const World& world) {
    Elementwise model;
    Engine engine(model, world, Plan::zero3().precision(Precision::fp8), AdamW{});
    engine.backward(model.loss(engine.micro_batch()));
    EXPECT_THROW(engine.step(), StateError);
  });
}

}  // namespace zero::test::float8_training_test
