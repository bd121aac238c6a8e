// Parameters that are shared, used again, used elsewhere, frozen, or not used at all.
#include <torch/torch.h>

#include "programs.h"

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

struct External : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = torch::tanh(inner(numbers(index, {3, 5})));
    return squared(F::linear(x, inner->weight.t(), other->bias) + other->weight.sum(1));
  }
  Linear inner = register_module("inner", Linear(5, 6));
  Linear other = register_module("other", Linear(9, 5));
};

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

// Two layers, of which a course freezes one.
struct Pair : torch::nn::Module {
  at::Tensor loss(std::int64_t index) { return squared(second(torch::tanh(first(numbers(index, {3, 5}))))); }
  Linear first = register_module("first", Linear(5, 7));
  Linear second = register_module("second", Linear(7, 3));
};

void freeze(torch::nn::Module& module, bool frozen = true) {
  for (at::Tensor& parameter : module.parameters()) parameter.set_requires_grad(!frozen);
}

std::function<std::shared_ptr<Pair>()> prepared(const std::function<void(Pair&)>& prepare) {
  return [prepare] {
    auto model = std::make_shared<Pair>();
    prepare(*model);
    return model;
  };
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

TEST(ControlFlow, RanksUseDifferentExpertsInTheLeastMemory) {
  const Job job{.plan = Plan::zero3().resident_budget(1), .ranks = 3, .steps = 4};
  EXPECT_EQ(difference(train<Experts>(job), train<Experts>({.ranks = 3, .steps = 4})), "");
}

TEST(ControlFlow, RanksUseDifferentExpertsOverMicroBatches) {
  under_every_plan({.plan = Plan::ddp().accumulate(3), .ranks = 3}, [](const Job& job) {
    EXPECT_EQ(difference(train_plain<Experts>(job), train<Experts>(job), 1e-6), "");
  });
}

std::vector<ProgramRow> of_shared_parameters() {
  const auto weakened = prepared([](Pair& model) {
    model.first->weight.register_hook([](const at::Tensor& gradient) { return gradient * 0.25; });
  });
  return {
      {"ATiedWeightIsOneParameter", usual<Tied>(), strictly_on({3})},
      {"WeightsThatLieSideBySideInOneStorage", usual<SideBySide>(), strictly_on({2})},
      {"OneModuleUnderTwoNames", usual<TwoNames>(), strictly_on({2})},
      {"TheSameModuleSeveralTimesInOneForward", usual<Repeated>(), strictly_on({3})},
      {"AParameterUsedOutsideItsModule", usual<External>(), strictly_on({2})},
      {"AParameterReturnedByItsModule", usual<ReturnsItsBias>(), strictly_on({2})},
      {"ViewsOfAParameter", usual<Views>(), strictly_on({2})},
      {"AHookOnAParameterChangesItsGradient", usual<Pair>(Sgd{.lr = 0.5}, {.make = weakened}), strictly_on({2})},
  };
}
std::vector<ProgramRow> of_frozen_parameters() {
  const auto first_frozen = prepared([](Pair& model) { freeze(*model.first); });
  const auto last_frozen = prepared([](Pair& model) { freeze(*model.second); });
  const auto weight_frozen = prepared([](Pair& model) { model.first->weight.set_requires_grad(false); });
  const auto in_turn = [](Pair& model, int step) { freeze(*model.first, step % 2 == 1); };
  const auto at_first = [](Pair& model, int step) { freeze(*model.first, step < 2); };
  return {
      {"FirstLayer", usual<Pair>(kAdamW, {.make = first_frozen}), strictly_on({2})},
      {"LastLayer", usual<Pair>(kAdamW, {.make = last_frozen}), strictly_on({2})},
      {"APartOfAUnit", usual<Pair>(kAdamW, {.make = weight_frozen}), strictly_on({3})},
      {"AndUnfrozenBetweenSteps", usual<Pair>(kAdamW, {.before_step = in_turn}), strictly_on({2}, 5)},
      {"AtTheStartAndUnfrozenLater", usual<Pair>(kAdamW, {.make = first_frozen, .before_step = at_first}),
       strictly_on({2}, 4)},
  };
}

std::vector<ProgramRow> of_unused_parameters() {
  const auto on_one_of = [](int ranks) { return where([ranks](std::int64_t index) { return index % ranks == 1; }); };
  const auto on_some_steps = where([](std::int64_t index) { return index / 2 % 2 == 1; });
  const Sgd sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1};
  return {
      {"OnOneOfTwoRanks", usual<Sometimes>(kDecaying, on_one_of(2)), strictly_on({2})},
      {"OnOneOfThreeRanks", usual<Sometimes>(kDecaying, on_one_of(3)), strictly_on({3})},
      {"OnSomeSteps", usual<Sometimes>(kDecaying, on_some_steps), strictly_on({2}, 6)},
      {"OnSomeStepsOfSgd", usual<Sometimes>(sgd, on_some_steps), strictly_on({2}, 6)},
      {"RanksUseDifferentExperts", usual<Experts>(), strictly_on({2, 3, 4}, 4)},
  };
}

}  // namespace zero::test::sharing_test
