// What an engine takes over and what it leaves alone: memory that others share, buffers, hooks, files that are loaded.
#include <torch/torch.h>

#include <sstream>

#include "harness.h"
#include "lm.h"
#include "zero/error.h"

namespace zero::test::takeover_test {

using torch::nn::Linear;

std::string refusal(torch::nn::Module& module, const Plan& plan = Plan::zero3()) {
  return thrown_by([&] { Engine engine(module, World(), plan, AdamW{}); });
}

TEST(Takeover, RefusesAParameterOfWhichAViewWasTakenBefore) {
  Linear layer(3, 4);
  {
    const at::Tensor cached = layer->weight.t();
    EXPECT_TRUE(says(refusal(*layer), {"'weight'", "shares memory", "clone()"}));
  }
  {
    const at::Tensor alias = layer->bias.detach();
    EXPECT_TRUE(says(refusal(*layer), {"'bias'", "detach()"}));
  }
  {
    const at::Tensor graph = layer(at::ones({2, 3}).requires_grad_());
    EXPECT_TRUE(says(refusal(*layer), {"'weight'"}));
  }
  layer->register_buffer("transposed", layer->weight.detach().t());
  EXPECT_TRUE(says(refusal(*layer), {"'weight'", "buffer"}));
}

TEST(Takeover, RefusesAViewWhoseBaseIsKept) {
  struct Holds : torch::nn::Module {
  } module;
  const at::Tensor base = at::ones({4, 3});
  module.register_parameter("part", base.t());
  EXPECT_TRUE(says(refusal(module), {"'part'", "shares memory"}));
}

TEST(Takeover, TakesWhatOthersHoldAsTheSameTensor) {
  Linear layer(3, 4);
  const std::vector<at::Tensor> held = layer->parameters();
  torch::optim::SGD beside(layer->parameters(), 0.1);
  EXPECT_EQ(refusal(*layer), "");
}

TEST(Takeover, RefusesBuffersThatCannotBeBroadcast) {
  Linear layer(3, 4);
  layer->register_buffer("wide", at::ones({1, 3}).expand({4, 3}));
  layer->register_buffer("away", at::empty({2}, at::kMeta));
  layer->register_buffer("thin", at::eye(3).to_sparse());
  const at::Tensor weight = layer->weight.detach().clone();
  EXPECT_TRUE(says(refusal(*layer), {"buffer 'wide'", "buffer 'away'", "buffer 'thin'"}));
  EXPECT_TRUE(layer->weight.equal(weight));
}

TEST(Takeover, RanksHaveToHaveTheSameOrderInMemory) {
  for (const Plan& plan : all_plans()) {
    const auto rank = [&](const World& world) {
      torch::nn::Conv2d layer(torch::nn::Conv2dOptions(3, 4, 2));
      if (world.rank() == 1) layer->weight.set_data(layer->weight.contiguous(at::MemoryFormat::ChannelsLast));
      const std::string text = thrown_by([&] { Engine engine(*layer, world, plan, AdamW{}); });
      EXPECT_TRUE(says(text, {"'weight'", "memory order [0, 2, 3, 1]", "rank 1"}));
    };
    run_ranks(2, rank, kToDisagree);
  }
}

TEST(Takeover, AnOrderThatIsNoneIsNotCompared) {
  run_ranks(2, [](const World& world) {
    torch::nn::Conv2d layer(torch::nn::Conv2dOptions(1, 4, 2));
    if (world.rank() == 1) layer->weight.set_data(layer->weight.contiguous(at::MemoryFormat::ChannelsLast));
    Engine engine(*layer, world, Plan::zero3(), AdamW{});
  });
}

struct Net : torch::nn::Module {
  at::Tensor loss(std::int64_t index) { return layer(numbers(index, {3, 5})).to(at::kFloat).square().mean(); }
  Linear layer = register_module("layer", Linear(5, 4));
};

// Counts gradients, with what they were.
struct Counting : torch::autograd::PostAccumulateGradHook {
  explicit Counting(std::vector<at::Tensor>& s) : seen(s) {}
  void operator()(const torch::autograd::Variable& parameter) override { seen.push_back(parameter.grad().clone()); }
  std::vector<at::Tensor>& seen;
};

TEST(Takeover, TheProgramsHooksAreCalledAndGivenBack) {
  for (const Plan& plan : all_plans())
    run_ranks(2, [&](const World& world) {
      Net plain, model;
      initialise(plain, kSeed);
      initialise(model, kSeed);
      plain.loss(world.rank()).backward();
      std::vector<at::Tensor> before, later;
      const auto hook_up = [&](std::vector<at::Tensor>& seen) {
        torch::autograd::impl::set_post_acc_grad_hooks(model.layer->weight, std::make_unique<Counting>(seen));
      };
      hook_up(before);
      {
        Engine engine(model, world, plan, Sgd{.lr = 0.1});
        engine.backward(model.loss(world.rank()));
        ASSERT_EQ(before.size(), 1u);
        EXPECT_TRUE(before[0].equal(plain.layer->weight.grad()));
        hook_up(later);
        EXPECT_TRUE(engine.step().applied);
        EXPECT_TRUE(train_step(model, engine).applied);
        EXPECT_EQ(before.size(), 1u);
        EXPECT_EQ(later.size(), 1u);
        engine.release();
      }
      model.loss(0).backward();
      EXPECT_EQ(later.size(), 2u);
      EXPECT_TRUE(model.layer->weight.grad().defined());
    });
}

// A gradient that arrives although the program has replaced the engine's hook is not lost.
TEST(Takeover, AHookThatIsSetLaterChangesNoBits) {
  const Job job{.plan = Plan::ddp()};
  const Outcome expected = train<Net>(job);
  under_every_plan(job, [&](const Job& each) {
    const Outcome run = train_by<Net>(each, {}, [&](Net& model, Engine& engine, Outcome& outcome, int) {
      std::vector<at::Tensor> seen;
      for (int step = 0; step < each.steps; ++step) {
        for (const at::Tensor& parameter : model.parameters())
          torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Counting>(seen));
        outcome.record(train_step(model, engine));
      }
      EXPECT_EQ(seen.size(), 2u * static_cast<std::size_t>(each.steps));
      for (const at::Tensor& parameter : model.parameters())
        torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
    });
    EXPECT_EQ(difference(expected, run), "");
  });
}

// Another model's parameters, in a file.
std::string file_of(const std::shared_ptr<Net>& model) {
  std::ostringstream file;
  torch::save(model, file);
  return file.str();
}

TEST(Takeover, LoadsAModuleInsideAGather) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    for (const Plan& plan : all_plans())
      run_ranks(2, [&](const World& world) {
        auto other = std::make_shared<Net>();
        initialise(*other, 99);
        const std::string file = file_of(other);
        auto model = std::make_shared<Net>();
        initialise(*model, kSeed);  // a weight that a random one is stored as would keep its remainder
        Engine engine(*model, world, plan.precision(precision), AdamW{});
        train_step(*model, engine);
        {
          const auto scope = gather(model->parameters());
          std::istringstream stream(file);
          torch::load(model, stream);
        }
        const at::Tensor loaded = engine.main_parameter(model->layer->weight);
        const at::ScalarType stored = precision == Precision::bf16 ? at::kBFloat16 : at::kFloat;
        EXPECT_TRUE(loaded.equal(other->layer->weight.detach().to(stored).to(at::kFloat)));
        EXPECT_EQ(model->layer->weight.scalar_type(), stored);
        EXPECT_TRUE(train_step(*model, engine).applied);
      });
}

TEST(Takeover, ALoadThatIsDroppedLeavesTheParametersAsTheyWere) {
  for (const Plan& plan : all_plans())
    on_ranks<Net>({.plan = plan}, {}, [&](Net& model, Engine& engine, int) {
      const auto before = parameters_of(model, engine);
      try {
        const auto scope = gather(model.parameters());
        model.layer->weight.set_data(at::full({4, 5}, 7.0));
        throw std::runtime_error("inside");
      } catch (const std::runtime_error&) {
      }
      for (const auto& [name, value] : parameters_of(model, engine)) EXPECT_TRUE(value.equal(before.at(name))) << name;
      EXPECT_TRUE(train_step(model, engine).applied);
    });
}

TEST(Takeover, AParameterThatIsReplacedOutsideOfAGatherIsNamed) {
  for (const Plan& plan : all_plans())
    for (const char* name : {"layer.weight", "layer.bias"})
      on_ranks<Net>({.plan = plan}, {}, [&](Net& model, Engine& engine, int) {
        at::Tensor parameter = model.named_parameters()[name];
        parameter.set_data(at::zeros(parameter.sizes(), parameter.options().requires_grad(false)));
        EXPECT_TRUE(says(thrown_by([&] { engine.backward(model.loss(0)); }),
                         {std::string("'") + name + "' no longer lies where", "inside zero::gather"}));
      });
}

TEST(Takeover, AFileOfAnotherShapeIsAnErrorThatLeavesTheEngineAlive) {
  for (const Plan& plan : all_plans())
    on_ranks<Net>({.plan = plan}, {}, [&](Net& model, Engine& engine, int) {
      const std::string text = thrown_by([&] {
        const auto scope = gather(model.parameters());
        model.layer->weight.set_data(at::ones({2, 5}));
      });
      EXPECT_TRUE(says(text, {"'layer.weight'", "shape"}));
      std::ostringstream file;
      torch::save(Linear(5, 2), file);
      const std::string other = thrown_by([&] {
        const auto scope = gather(model.parameters());
        std::istringstream stream(file.str());
        torch::load(model.layer, stream);
      });
      EXPECT_TRUE(says(other, {"'layer.weight'", "shape"}));
      EXPECT_EQ(model.layer->weight.sizes(), at::IntArrayRef({4, 5}));
      EXPECT_TRUE(train_step(model, engine).applied);
    });
}

struct Dropping : torch::nn::Module {
  at::Tensor mask() { return torch::dropout(at::ones({64}) * scale, 0.5, true).detach(); }
  at::Tensor scale = register_parameter("scale", at::ones({1}));
};

TEST(Takeover, EnginesSideBySideDrawTheirOwnNumbers) {
  run_ranks(2, [](const World& world) {
    Dropping first, second, third;
    Engine one(first, world, Plan::zero2(), AdamW{}), two(second, world, Plan::zero2(), AdamW{});
    const at::Tensor mask = first.mask();
    EXPECT_FALSE(mask.equal(second.mask()));
    const Options same{.seed = 0};
    Engine given(third, world, Plan::zero2(), AdamW{}, same);
    EXPECT_TRUE(mask.equal(third.mask()));
  });
}

TEST(Takeover, EnginesOneAfterTheOtherDrawTheSame) {
  run_ranks(1, [](const World& world) {
    std::vector<at::Tensor> masks;
    for (int i = 0; i < 2; ++i) {
      Dropping model;
      Engine engine(model, world, Plan::ddp(), AdamW{});
      masks.push_back(model.mask());
    }
    EXPECT_TRUE(masks[0].equal(masks[1]));
  });
}

}  // namespace zero::test::takeover_test
