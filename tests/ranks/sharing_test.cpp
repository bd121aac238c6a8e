// Parameters that are shared, used again, used elsewhere, frozen, or not used at all.
#include <torch/torch.h>

#include "harness.h"

namespace zero::test::sharing_test {

using torch::nn::Linear;
namespace F = torch::nn::functional;

at::Tensor squared(const at::Tensor& x) {
  return x.square().mean();
}

// A head whose weight is registered in two modules.
struct TiedHeadImpl : torch::nn::Module {
  explicit TiedHeadImpl(const at::Tensor& shared) : weight(register_parameter("weight", shared)) {}
  at::Tensor forward(const at::Tensor& x) { return F::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(TiedHead);

struct Tied : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor ids = tokens(index, {8}, 11);
    return F::cross_entropy(head(middle(embed(ids))), ids.roll(1));
  }
  torch::nn::Embedding embed = register_module("embed", torch::nn::Embedding(11, 7));
  Linear middle = register_module("middle", Linear(7, 7));
  TiedHead head = register_module("head", TiedHead(embed->weight));
};

TEST(Sharing, ATiedWeightIsOneParameter) {
  expect_as_torch<Tied>({.ranks = 3});
}

// Two weights of one storage, as flatten_parameters() of a recurrent layer makes them on a device.
struct SideBySide : torch::nn::Module {
  explicit SideBySide(std::int64_t second_begins = 35) {
    const at::Tensor memory = numbers(0, {70});
    first->weight.set_data(memory.slice(0, 0, 35).view({5, 7}));
    second->weight.set_data(memory.slice(0, second_begins, second_begins + 35).view({7, 5}));
  }
  at::Tensor loss(std::int64_t index) { return squared(second(torch::tanh(first(numbers(index, {3, 7}))))); }
  Linear first = register_module("first", Linear(7, 5)), second = register_module("second", Linear(5, 7));
};

TEST(Sharing, WeightsThatLieSideBySideInOneStorage) {
  expect_as_torch<SideBySide>({.ranks = 2});
}

TEST(Sharing, WeightsThatOverlapAreRefused) {
  SideBySide module(34);
  try {
    const Engine engine(module, World(), Plan::zero3(), AdamW{});
    ADD_FAILURE() << "taken";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("'second.weight' shares memory with 'first.weight'"), std::string::npos)
        << error.what();
  }
}

TEST(Sharing, ATiedWeightTakesThePlaceOfItsFirstName) {
  on_ranks<Tied>({}, {}, [](Tied&, Engine& engine, int) {
    EXPECT_EQ(engine.layout().numel(), 11 * 7 + 7 * 7 + 7);
    EXPECT_THROW(engine.layout().find("head.weight"), ConfigError);
  });
}

struct TwoNames : torch::nn::Module {
  at::Tensor loss(std::int64_t index) { return squared(second(torch::tanh(first(numbers(index, {3, 5}))))); }
  Linear first = register_module("first", Linear(5, 5));
  Linear second = register_module("second", first);
};

TEST(Sharing, OneModuleUnderTwoNames) {
  expect_as_torch<TwoNames>();
}

// One layer applied again and again, as in ALBERT; the number of times depends on the data.
struct Repeated : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    at::Tensor x = numbers(index, {3, 5});
    for (std::int64_t i = 0; i < 2 + index % 3; ++i) x = x + torch::tanh(layer(norm(x)));
    return squared(x);
  }
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})));
  Linear layer = register_module("layer", Linear(5, 5));
};

TEST(Sharing, TheSameModuleSeveralTimesInOneForward) {
  expect_as_torch<Repeated>({.ranks = 3});
}

struct External : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = torch::tanh(inner(numbers(index, {3, 5})));
    return squared(F::linear(x, inner->weight.t(), other->bias) + other->weight.sum(1));
  }
  Linear inner = register_module("inner", Linear(5, 6));
  Linear other = register_module("other", Linear(9, 5));
};

TEST(Sharing, AParameterUsedOutsideItsModule) {
  expect_as_torch<External>();
}

struct ReturnsItsBias : torch::nn::Module {
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {layer(x), layer->bias}; }
  at::Tensor loss(std::int64_t index) {
    const auto [y, bias] = forward(numbers(index, {3, 5}));
    const at::Tensor held = last->bias;  // a handle that outlives other units' use
    return squared(last(torch::tanh(y)) + bias + held);
  }
  Linear layer = register_module("layer", Linear(5, 5));
  Linear last = register_module("last", Linear(5, 5));
};

TEST(Sharing, AParameterReturnedByItsModule) {
  expect_as_torch<ReturnsItsBias>();
}

// Views of a parameter, taken before and used after other units.
struct Views : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor row = table[1], transposed = table.t(), chunk = table.chunk(2, 1)[1];
    const at::Tensor x = torch::tanh(layer(numbers(index, {3, 6})));
    return squared(x.matmul(transposed) + row.sum() + chunk.sum() + table.reshape({-1}).slice(0, 2, 5).sum());
  }
  at::Tensor table = register_parameter("table", torch::zeros({4, 6}));
  Linear layer = register_module("layer", Linear(6, 6));
};

TEST(Sharing, ViewsOfAParameter) {
  expect_as_torch<Views>();
}

// Two layers, of which a course freezes one.
struct Pair : torch::nn::Module {
  at::Tensor loss(std::int64_t index) { return squared(second(torch::tanh(first(numbers(index, {3, 5}))))); }
  Linear first = register_module("first", Linear(5, 7));
  Linear second = register_module("second", Linear(7, 3));
};

TEST(Sharing, AHookOnAParameterChangesItsGradient) {
  const Course<Pair> course{.make = [] {
    auto model = std::make_shared<Pair>();
    model->first->weight.register_hook([](const at::Tensor& gradient) { return gradient * 0.25; });
    return model;
  }};
  expect_as_torch<Pair>({.optimizer = Sgd{.lr = 0.5}}, course);
}

void freeze(torch::nn::Module& module, bool frozen = true) {
  for (at::Tensor& parameter : module.parameters()) parameter.set_requires_grad(!frozen);
}

TEST(Frozen, FromTheStart) {
  for (const bool first : {true, false}) {
    const Course<Pair> course{.make = [first] {
      auto model = std::make_shared<Pair>();
      freeze(first ? *model->first : *model->second);
      return model;
    }};
    expect_as_torch<Pair>({}, course);
  }
}

TEST(Frozen, APartOfAUnit) {
  const Course<Pair> course{.make = [] {
    auto model = std::make_shared<Pair>();
    model->first->weight.set_requires_grad(false);
    return model;
  }};
  expect_as_torch<Pair>({.ranks = 3}, course);
}

TEST(Frozen, AndUnfrozenBetweenSteps) {
  const Course<Pair> course{.before_step = [](Pair& model, int step) { freeze(*model.first, step % 2 == 1); }};
  expect_as_torch<Pair>({.steps = 5}, course);
}

TEST(Frozen, AtTheStartAndUnfrozenLater) {
  const Course<Pair> course{.make =
                                [] {
                                  auto model = std::make_shared<Pair>();
                                  freeze(*model->first);
                                  return model;
                                },
                            .before_step = [](Pair& model, int step) { freeze(*model.first, step < 2); }};
  expect_as_torch<Pair>({.steps = 4}, course);
}

TEST(Frozen, OneParameterOfAUnitBetweenMicroBatches) {
  under_every_plan({.plan = Plan::ddp().accumulate(2)}, [](const Job& job) {
    train_by<Pair>(job, {}, [](Pair& model, Engine& engine, Outcome& run, int) {
      engine.backward(model.loss(0));
      model.first->bias.set_requires_grad(false);
      engine.backward(model.loss(1));
      model.first->bias.set_requires_grad(true);
      run.record(engine.step());
      EXPECT_GT(run.norms.back(), 0);
    });
  });
}

// Uses `extra` only where `uses(index)`; never uses `never`.
struct Sometimes : torch::nn::Module {
  explicit Sometimes(std::function<bool(std::int64_t)> u = [](std::int64_t) { return false; }) : uses(std::move(u)) {}
  at::Tensor loss(std::int64_t index) {
    at::Tensor x = torch::tanh(always(numbers(index, {3, 5})));
    if (uses(index)) x = x + extra(x);
    return squared(x);
  }
  std::function<bool(std::int64_t)> uses;
  Linear always = register_module("always", Linear(5, 5));
  Linear extra = register_module("extra", Linear(5, 5));
  Linear never = register_module("never", Linear(5, 5));
};

Course<Sometimes> where(std::function<bool(std::int64_t)> uses) {
  return {.make = [uses] { return std::make_shared<Sometimes>(uses); }};
}

const Optimizer kDecaying = AdamW{.lr = 2e-3, .eps = 1e-4, .weight_decay = 0.5};

TEST(NoGradient, OnSomeRanks) {
  for (const int ranks : {2, 3})
    expect_as_torch<Sometimes>({.ranks = ranks, .optimizer = kDecaying},
                               where([ranks](std::int64_t index) { return index % ranks == 1; }));
}

TEST(NoGradient, OnSomeSteps) {
  const auto uses = where([](std::int64_t index) { return index / 2 % 2 == 1; });
  expect_as_torch<Sometimes>({.optimizer = kDecaying, .steps = 6}, uses);
  expect_as_torch<Sometimes>({.optimizer = Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}, .steps = 6}, uses);
}

TEST(NoGradient, OnSomeMicroBatches) {
  under_every_plan({.plan = Plan::ddp().accumulate(3), .optimizer = kDecaying}, [](const Job& job) {
    const auto uses = where([](std::int64_t index) { return index % 3 == 1; });
    EXPECT_EQ(difference(train_plain<Sometimes>(job, uses), train<Sometimes>(job, uses), 1e-6), "");
  });
}

TEST(NoGradient, EverMeansNoDecayAndNoMoment) {
  under_every_plan({.optimizer = kDecaying}, [](const Job& job) {
    Sometimes start;
    initialise(start, kSeed);
    const Outcome run = train<Sometimes>(job);
    EXPECT_TRUE(run.parameters.at("never.weight").equal(start.never->weight));
    EXPECT_FALSE(run.parameters.at("always.weight").equal(start.always->weight));
  });
}

struct Experts : torch::nn::Module {
  Experts() {
    for (int i = 0; i < 4; ++i) experts->push_back(Linear(5, 5));
    register_module("experts", experts);
  }
  at::Tensor loss(std::int64_t index) {
    at::Tensor x = torch::tanh(router(numbers(index, {3, 5})));
    for (std::int64_t hop = 0; hop <= index % 3; ++hop)
      x = x + torch::tanh(experts[static_cast<std::size_t>((index * 7 + hop * 3) % 4)]->as<Linear>()->forward(x));
    return squared(x);
  }
  Linear router = register_module("router", Linear(5, 5));
  torch::nn::ModuleList experts;
};

TEST(ControlFlow, RanksUseDifferentExperts) {
  for (const int ranks : {2, 3, 4}) expect_as_torch<Experts>({.ranks = ranks, .steps = 4});
}

TEST(ControlFlow, RanksUseDifferentExpertsInTheLeastMemory) {
  const Job job{.plan = Plan::zero3().resident_budget(1), .ranks = 3, .steps = 4};
  EXPECT_EQ(difference(train<Experts>(job), train<Experts>({.ranks = 3, .steps = 4})), "");
}

TEST(ControlFlow, RanksUseDifferentExpertsOverMicroBatches) {
  under_every_plan({.plan = Plan::ddp().accumulate(3), .ranks = 3}, [](const Job& job) {
    EXPECT_EQ(difference(train_plain<Experts>(job), train<Experts>(job), 1e-6), "");
  });
}

}  // namespace zero::test::sharing_test
