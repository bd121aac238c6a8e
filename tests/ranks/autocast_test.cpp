// 16 bits belong to the model: whatever runs around it, and whatever the program does with autocast itself, is as it
// would be without the engine.
#include <ATen/autocast_mode.h>

#include "harness.h"
#include "lm.h"

namespace zero::test::autocast_test {

using torch::nn::Linear;

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(in(x))); }
  at::Tensor loss(std::int64_t index) { return forward(numbers(index, {4, 8})).to(at::kFloat).square().mean(); }
  Linear in = register_module("in", Linear(8, 12)), out = register_module("out", Linear(12, 3));
};

bool enabled() {
  return at::autocast::is_autocast_enabled(at::kCPU);
}

// A product that the program makes of its own.
at::ScalarType own_product() {
  const at::Tensor x = at::ones({3, 3});
  return at::mm(x, x).scalar_type();
}

template <class Body>
void in_bf16(const Body& body) {
  for (const Plan& plan : all_plans()) {
    SCOPED_TRACE(plan.label());
    on_ranks<Net>({.plan = plan.bf16()}, {}, body);
  }
}

TEST(Autocast, AnEvaluationEndsAtAFactoryToo) {
  in_bf16([](Net& net, Engine&, int) {
    Linear other(8, 3);
    {
      const at::NoGradGuard no_grad;
      EXPECT_EQ(net.forward(at::ones({2, 8})).scalar_type(), at::kBFloat16);
    }
    const at::Tensor x = torch::randn({3, 8});
    EXPECT_EQ(other(x).scalar_type(), at::kFloat);
    EXPECT_FALSE(enabled());
  });
}

struct LikeItsWeight : Net {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor zeros = torch::zeros_like(in->weight);
    EXPECT_EQ(zeros.scalar_type(), in->weight.scalar_type());
    return Net::loss(index);
  }
};

TEST(Autocast, AForwardMayBeginWithALikeFactory) {
  const Job job{.plan = Plan::ddp().bf16()};
  const Outcome expected = train<Net>(job);
  under_every_plan(job, [&](const Job& each) { EXPECT_EQ(difference(expected, train<LikeItsWeight>(each)), ""); });
}

TEST(Autocast, TheProgramsOwnStateStaysAsItIs) {
  in_bf16([](Net& net, Engine& engine, int) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor loss = net.loss(engine.micro_batch());
    EXPECT_TRUE(enabled());
    at::autocast::set_autocast_enabled(at::kCPU, false);
    engine.backward(loss);
    EXPECT_FALSE(enabled());
    EXPECT_EQ(own_product(), at::kFloat);
    engine.step();
    EXPECT_FALSE(enabled());
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  });
}

TEST(Autocast, TheProgramsOwnAutocastGoesOnAfterAForward) {
  in_bf16([](Net& net, Engine& engine, int) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
    engine.backward(net.loss(engine.micro_batch()));
    EXPECT_EQ(own_product(), at::kHalf);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  });
}

// A region without autocast, by hand, as programs have it.
template <class Body>
at::Tensor without_autocast(const Body& body) {
  const bool before = enabled();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  const at::Tensor result = body();
  at::autocast::set_autocast_enabled(at::kCPU, before);
  return result;
}

struct BeginsWithout : Net {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = numbers(index, {4, 8});
    const at::Tensor hidden = without_autocast([&] { return in(x); });
    const at::Tensor rest = out(torch::relu(hidden));
    EXPECT_EQ(rest.scalar_type(), at::kBFloat16);
    return rest.to(at::kFloat).square().mean();
  }
};

TEST(Autocast, ARegionWithoutItAtTheFirstUseEndsNothing) {
  const Job job{.plan = Plan::ddp().bf16()};
  const Outcome expected = train<Net>(job);
  under_every_plan(job, [&](const Job& each) { EXPECT_EQ(difference(expected, train<BeginsWithout>(each)), ""); });
}

TEST(Autocast, AProgramThatHasItOnMayLeaveARegionOut) {
  in_bf16([](Net& net, Engine& engine, int) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor y = net.forward(at::ones({2, 8}));
    const at::Tensor wide = y.to(at::kFloat);
    EXPECT_EQ(without_autocast([&] { return at::mm(wide, wide.t()); }).scalar_type(), at::kFloat);
    EXPECT_EQ(at::mm(wide, wide.t()).scalar_type(), at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    engine.backward(y.to(at::kFloat).sum());
  });
}

// To look at weights is no forward, whether gradients are enabled or not. One rank: the program's generator is one for
// all threads of a process.
TEST(Autocast, LookingAtAWeightBetweenStepsOpensNothing) {
  on_ranks<Net>({.plan = Plan::ddp().bf16(), .ranks = 1}, {}, [](Net& net, Engine& engine, int) {
    train_step(net, engine);
    torch::manual_seed(5);
    const at::Tensor expected = torch::randperm(1000);
    torch::manual_seed(5);
    EXPECT_GT(net.in->weight.norm().item<double>(), 0);
    EXPECT_GT((net.in->weight.detach() * 2).abs().max().item<double>(), 0);
    EXPECT_TRUE(torch::randperm(1000).equal(expected));
    EXPECT_EQ(own_product(), at::kFloat);
  });
}

TEST(Autocast, LookingAtWeightsOnOneRankChangesNoBits) {
  const Job job{.plan = Plan::ddp().bf16(), .options = {.seed = 3}};
  const Course<Lm> course = lm_with_dropout(0.2);
  const Outcome expected = train<Lm>(job, course);
  under_every_plan(job, [&](Job each) {
    each.options = job.options;
    const Outcome looked = train_by<Lm>(each, course, [&](Lm& model, Engine& engine, Outcome& run, int rank) {
      for (int step = 0; step < each.steps; ++step) {
        if (rank == 0) model.parameters().front().sum().item<double>();
        run.record(train_step(model, engine));
      }
    });
    EXPECT_EQ(difference(expected, looked), "");
  });
}

// Dropout after layers that are frozen draws from the engine's generator all the same.
struct FrozenFirst : Net {
  FrozenFirst() {
    for (at::Tensor& parameter : in->parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor loss(std::int64_t index) {
    const at::Tensor hidden = torch::dropout(torch::relu(in(numbers(index, {4, 8}))), 0.5, true);
    return out(hidden).to(at::kFloat).square().mean();
  }
};

TEST(Autocast, DropoutAfterFrozenLayersIsTheEngines) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const Job job{.plan = Plan::ddp().precision(precision)};
    torch::manual_seed(1);
    const Outcome expected = train<FrozenFirst>(job);
    torch::manual_seed(2);
    under_every_plan(job, [&](const Job& each) { EXPECT_EQ(difference(expected, train<FrozenFirst>(each)), ""); });
  }
}

struct Values : torch::nn::Module {
  explicit Values(double value) { register_parameter("value", at::full({6}, value)); }
  at::Tensor value() const { return named_parameters()["value"]; }
};

// A norm whose operands lie in two units, of which the budget holds one, one in 16 bits and one in 32.
struct SplitNorm : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = numbers(index, {8, 6});
    const at::Tensor y = at::batch_norm(x, scale->value(), shift->value(), {}, {}, true, 0.1, 1e-5, false);
    return (y - x.square()).square().mean();
  }
  std::shared_ptr<Values> scale = register_module("scale", std::make_shared<Values>(1));
  std::shared_ptr<Values> shift = register_module("shift", std::make_shared<Values>(0));
};

TEST(Autocast, PromotionKeepsTheOtherOperandsUnit) {
  Job job{.plan = Plan::ddp().bf16()};
  job.options.full_precision = [](const ParameterInfo& info) { return info.name.find("shift") != std::string::npos; };
  const Outcome expected = train<SplitNorm>(job);
  EXPECT_EQ(expected.parameters.at("shift.value as stored").scalar_type(), at::kFloat);
  job.plan = Plan::zero3().bf16().resident_budget(1);
  EXPECT_EQ(difference(expected, train<SplitNorm>(job)), "");
}

}  // namespace zero::test::autocast_test
