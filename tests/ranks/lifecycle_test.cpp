// Engines and modules that come and go; two engines; modules that cannot be trained.
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <optional>
#include <sstream>

#include "lm.h"
#include "zero/error.h"

namespace zero::test::lifecycle_test {

using torch::nn::Linear;

struct Generator : torch::nn::Module {
  at::Tensor forward(const at::Tensor& z) { return out(torch::tanh(in(z))); }
  Linear in = register_module("in", Linear(4, 9)), out = register_module("out", Linear(9, 3));
};
struct Critic : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(in(x))).mean(); }
  Linear in = register_module("in", Linear(3, 8)), out = register_module("out", Linear(8, 1));
};

at::Tensor noise(std::int64_t index) {
  return numbers(index, {5, 4});
}
at::Tensor real(std::int64_t index) {
  return numbers(index + 5000, {5, 3});
}

void set_trainable(torch::nn::Module& module, bool trainable) {
  for (at::Tensor& parameter : module.parameters()) parameter.set_requires_grad(trainable);
}

at::Tensor critic_loss(Generator& generator, Critic& critic, std::int64_t index) {
  return critic.forward(generator.forward(noise(index)).detach()) - critic.forward(real(index)).square();
}

at::Tensor generator_loss(Generator& generator, Critic& critic, std::int64_t index) {
  return -critic.forward(generator.forward(noise(index)));
}

// Two networks trained in turn, each by its own trainer: critic.backward(loss), critic.step(), ...
template <class Trainer>
void adversarial_step(Generator& generator, Critic& critic, Trainer& for_generator, Trainer& for_critic,
                      const std::vector<std::int64_t>& indices) {
  for (const std::int64_t index : indices) for_critic.backward(critic_loss(generator, critic, index));
  for_critic.step();
  set_trainable(critic, false);
  for (const std::int64_t index : indices) for_generator.backward(generator_loss(generator, critic, index));
  set_trainable(critic, true);
  for_generator.step();
}

struct Both {
  Outcome generator, critic;
};

Both train_both(const Job& job) {
  std::vector<Both> runs(static_cast<std::size_t>(job.ranks));
  run_ranks(job.ranks, [&](const World& world) {
    Generator generator;
    Critic critic;
    initialise(generator, kSeed);
    initialise(critic, kSeed + 100);
    Engine for_generator(generator, world, job.plan, job.optimizer), for_critic(critic, world, job.plan, job.optimizer);
    for (int step = 0; step < job.steps; ++step)
      adversarial_step(generator, critic, for_generator, for_critic, {step * job.ranks + world.rank()});
    Both& run = runs[static_cast<std::size_t>(world.rank())];
    run.generator.parameters = parameters_of(generator, for_generator);
    run.critic.parameters = parameters_of(critic, for_critic);
  });
  return runs.front();
}

Both train_both_plain(const Job& job) {
  Generator generator;
  Critic critic;
  initialise(generator, kSeed);
  initialise(critic, kSeed + 100);
  PlainTrainer for_generator(generator, job), for_critic(critic, job);
  for (int step = 0; step < job.steps; ++step)
    adversarial_step(generator, critic, for_generator, for_critic, {step * 2, step * 2 + 1});
  Both run{for_generator.finish(), for_critic.finish()};
  run.generator.losses = run.generator.norms = run.critic.losses = run.critic.norms = {};
  return run;
}

TEST(TwoEngines, OfAnAdversarialPairInOneThread) {
  const Both expected = train_both_plain({});
  under_every_plan({}, [&](const Job& job) {
    const Both run = train_both(job);
    EXPECT_EQ(difference(expected.generator, run.generator, 1e-6), "");
    EXPECT_EQ(difference(expected.critic, run.critic, 1e-6), "");
  });
}

TEST(TwoEngines, OfAnAdversarialPairInBf16) {
  const Both expected = train_both({.plan = Plan::ddp().bf16()});
  under_every_plan({.plan = Plan::ddp().bf16()}, [&](const Job& job) {
    const Both run = train_both(job);
    EXPECT_EQ(difference(expected.generator, run.generator), "");
    EXPECT_EQ(difference(expected.critic, run.critic), "");
  });
}

TEST(TwoEngines, AGradientThatReachesTheOtherEngineIsDropped) {
  under_every_plan({}, [](const Job& job) {
    run_ranks(job.ranks, [&](const World& world) {
      Generator generator;
      Critic critic;
      Engine one(generator, world, job.plan, job.optimizer), other(critic, world, job.plan, job.optimizer);
      const auto before = parameters_of(critic, other);
      one.backward(generator_loss(generator, critic, world.rank()));
      EXPECT_TRUE(one.step().applied);
      EXPECT_FALSE(other.step().applied);
      for (const auto& [name, value] : parameters_of(critic, other)) EXPECT_TRUE(value.equal(before.at(name))) << name;
      adversarial_step(generator, critic, one, other, {world.rank()});
      EXPECT_EQ(one.steps() + other.steps(), 3);
    });
  });
}

TEST(TwoEngines, OfPartsOfOneModule) {
  under_every_plan({}, [](const Job& job) {
    run_ranks(job.ranks, [&](const World& world) {
      Lm model;
      Engine blocks(*model.blocks, world, job.plan, job.optimizer);
      EXPECT_THROW(Engine(model, world, job.plan, job.optimizer), ConfigError);
      set_trainable(*model.embed, false);
      set_trainable(*model.norm, false);
      model.bias.set_requires_grad(false);
      blocks.backward(model.loss(world.rank()));
      EXPECT_TRUE(blocks.step().applied);
    });
  });
}

TEST(Start, TheValuesOfRankZeroWin) {
  under_every_plan({.ranks = 3}, [](const Job& job) {
    on_ranks<Lm>(job, {}, [](Lm& model, Engine& engine, int) {
      Lm first;
      initialise(first, kSeed);
      const auto values = parameters_of(model, engine);
      for (const auto& item : first.named_parameters()) EXPECT_TRUE(values.at(item.key()).equal(item.value()));
    });
  });
}

struct WithBuffers : Lm {
  at::Tensor counts = register_buffer("counts", at::zeros({4}, at::kLong));
  at::Tensor mask = register_buffer("mask", at::zeros({2, 3}, at::kBool).t());
  at::Tensor scale = register_buffer("scale", at::zeros({}, at::kDouble));
  at::Tensor order = register_parameter("order", at::zeros({5}, at::kInt), false);
  at::Tensor empty = register_buffer("empty", at::zeros({0}));
};

TEST(Start, BuffersAndIntegerParametersAreThoseOfRankZero) {
  for (const Plan& plan : {Plan::ddp(), Plan::zero3().bf16()})
    run_ranks(3, [&](const World& world) {
      WithBuffers model;
      const int mine = world.rank() + 1;
      model.counts.fill_(mine);
      model.mask.fill_(mine == 1);
      model.scale.fill_(mine);
      model.order.fill_(mine);
      Engine engine(model, world, plan, AdamW{});
      EXPECT_TRUE(model.counts.eq(1).all().item<bool>());
      EXPECT_TRUE(model.mask.all().item<bool>());
      EXPECT_EQ(model.scale.item<double>(), 1);
      EXPECT_TRUE(model.order.eq(1).all().item<bool>());
      EXPECT_EQ(model.scale.scalar_type(), at::kDouble);
      EXPECT_TRUE(train_step(model, engine).applied);
    });
}

TEST(End, ReleaseGivesTheModuleBackWhole) {
  under_every_plan({.ranks = 3}, [](const Job& job) {
    on_ranks<Lm>(job, {}, [](Lm& model, Engine& engine, int) {
      train_step(model, engine);
      const auto values = parameters_of(model, engine);
      engine.release();
      EXPECT_THROW(engine.step(), StateError);
      for (const auto& item : model.named_parameters()) {
        EXPECT_TRUE(item.value().equal(values.at(item.key())));
        EXPECT_NO_THROW(item.value().data_ptr());
      }
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      model.loss(0).backward();
      optimizer.step();
      EXPECT_FALSE(model.bias.equal(values.at("bias")));
    });
  });
}

// The ranks that computed have their units still, the other has none.
TEST(End, ReleaseBehindASkippedStepGivesTheModuleBackOnAllRanks) {
  run_ranks(3, [](const World& world) {
    Lm model;
    initialise(model, kSeed);
    model.to(device_of_rank());
    const std::vector<at::Tensor> parameters = model.parameters();
    std::vector<at::Tensor> before;
    for (const at::Tensor& each : parameters) before.push_back(each.detach().clone());
    Engine engine(model, world, Plan::zero3().resident_budget(1 << 30), AdamW{}, {.loss_scale = LossScale{}});
    const double infinite = std::numeric_limits<double>::infinity();
    engine.backward(world.rank() == 1 ? no_data() : model.loss(0) * infinite);
    EXPECT_TRUE(engine.step().skipped);
    engine.release();
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(before[i].equal(parameters[i])) << i;
  });
}

TEST(End, AReleasedModuleTrainsOnUnderAnotherEngine) {
  const Optimizer sgd = Sgd{.lr = 0.1};
  const Outcome expected = train<Lm>({.optimizer = sgd, .steps = 4});
  under_every_plan({}, [&](const Job& job) {
    run_ranks(job.ranks, [&](const World& world) {
      Lm model;
      initialise(model, kSeed);
      for (const int begin : {0, 2}) {
        Engine engine(model, world, begin == 0 ? job.plan : Plan::zero3(), sgd);
        for (int step = begin; step < begin + 2; ++step) {
          engine.backward(model.loss(step * 2 + world.rank()));
          engine.step();
        }
        engine.release();
      }
      for (const auto& item : model.named_parameters())
        EXPECT_TRUE(item.value().equal(expected.parameters.at(item.key()))) << item.key();
    });
  });
}

// To read a parameter of which a rank had a part only is an error that says what to do; shapes stay.
TEST(End, AnEngineThatEndsFirstLeavesWholeParametersOrSaysThatTheyAreGone) {
  under_every_plan({}, [](const Job& job) {
    run_ranks(job.ranks, [&](const World& world) {
      Lm model;
      std::optional<Engine> engine(std::in_place, model, world, job.plan, job.optimizer);
      train_step(model, *engine);
      const bool sharded = job.plan[State::parameter].rest.shard == Placement::sharded;
      engine.reset();
      const at::Tensor weight = model.blocks[0]->as<Block>()->up->weight;
      EXPECT_EQ(weight.sizes(), at::IntArrayRef({17, 13}));
      if (!sharded) return model.loss(0).backward();
      std::ostringstream file;
      for (const std::function<void()>& read :
           {std::function<void()>([&] { weight.sum(); }), std::function<void()>([&] { torch::save(weight, file); }),
            std::function<void()>([&] { model.loss(0); })})
        EXPECT_TRUE(says(thrown_by(read), {"engine.release()"}));
      const std::string refused = thrown_by([&] { const Engine again(model, world, job.plan, job.optimizer); });
      EXPECT_TRUE(says(refused, {"'blocks.0.up.weight'", "has no values", "engine.release()"}));
      for (const char* other : {"shares memory", "no floating-point"})
        EXPECT_EQ(refused.find(other), std::string::npos) << refused;
    });
  });
}

TEST(End, AModuleMayEndBeforeItsEngine) {
  under_every_plan({}, [](const Job& job) {
    run_ranks(job.ranks, [&](const World& world) {
      auto model = std::make_shared<Lm>();
      Engine engine(*model, world, job.plan, job.optimizer);
      engine.backward(model->loss(engine.micro_batch()));
      model.reset();
      EXPECT_TRUE(engine.step().applied);
      EXPECT_EQ(engine.ledger()[Owner::parameter].bytes, engine.estimate().state.parameter);
    });
  });
}

TEST(End, ParametersMayOutliveBoth) {
  under_every_plan({}, [](const Job& job) {
    run_ranks(job.ranks, [&](const World& world) {
      std::vector<at::Tensor> kept;
      {
        Lm model;
        Engine engine(model, world, job.plan, job.optimizer);
        train_step(model, engine);
        kept = model.parameters();
        engine.release();
      }
      for (const at::Tensor& parameter : kept) EXPECT_TRUE(parameter.isfinite().all().item<bool>());
    });
  });
}

TEST(End, ACopyOfAModuleIsAnOrdinaryModule) {
  under_every_plan({}, [](const Job& job) {
    on_ranks<Lm>(job, {}, [](Lm& model, Engine& engine, int) {
      train_step(model, engine);
      const auto values = parameters_of(model, engine);
      std::vector<at::Tensor> average;
      for (const at::Tensor& parameter : model.parameters()) average.push_back(parameter.detach().clone());
      const auto clone = model.embed->clone();
      train_step(model, engine);
      EXPECT_TRUE(clone->parameters()[0].equal(values.at("embed.weight")));
      EXPECT_NO_THROW(clone->parameters()[0].data_ptr());
      EXPECT_TRUE(average.back().isfinite().all().item<bool>());
      const auto items = model.named_parameters();
      for (std::size_t i = 0; i < average.size(); ++i) EXPECT_TRUE(average[i].equal(values.at(items[i].key())));
    });
  });
}

std::string refusal(torch::nn::Module& module, const Plan& plan = Plan::zero3()) {
  try {
    Engine engine(module, World(), plan, AdamW{});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

struct Holds : torch::nn::Module {
  explicit Holds(const at::Tensor& parameter) { register_parameter("odd", parameter); }
};

TEST(Refused, AModuleWithoutParameters) {
  torch::nn::Module empty;
  torch::nn::Dropout dropout;
  EXPECT_NE(refusal(empty).find("no floating-point parameters"), std::string::npos);
  EXPECT_NE(refusal(*dropout).find("no floating-point parameters"), std::string::npos);
}

TEST(Refused, ParametersThatCannotBeManagedByName) {
  const at::Tensor dense = at::ones({3, 4});
  Holds complex(at::zeros({2}, at::kComplexFloat)), sparse(dense.to_sparse()), meta(at::empty({2}, at::kMeta)),
      overlapping(at::ones({1, 4}).expand({3, 4}));
  for (Holds* module : {&complex, &sparse, &meta, &overlapping})
    EXPECT_NE(refusal(*module).find("'odd'"), std::string::npos) << refusal(*module);
}

TEST(Refused, ParametersThatShareMemoryWithoutBeingOne) {
  struct Two : torch::nn::Module {
  } module;
  const at::Tensor memory = at::ones({8});
  module.register_parameter("a", memory.slice(0, 0, 4));
  module.register_parameter("b", memory.slice(0, 4, 8));
  EXPECT_NE(refusal(module).find("'b' shares memory with 'a'"), std::string::npos) << refusal(module);
}

// Ranks that build different models: `make(rank)`.
void expect_disagreement(const std::function<std::shared_ptr<torch::nn::Module>(int)>& make,
                         const std::vector<std::string>& words) {
  for (const Plan& plan : {Plan::ddp(), Plan::zero3()}) {
    const auto rank = [&](const World& world) {
      const auto model = make(world.rank());
      try {
        Engine engine(*model, world, plan, AdamW{});
        ADD_FAILURE() << "different models went unnoticed";
      } catch (const Error& error) {
        for (const std::string& word : words)
          EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      }
    };
    run_ranks(2, rank, kToDisagree);
  }
}

std::shared_ptr<torch::nn::Module> linear(int in, int out) {
  return std::make_shared<torch::nn::LinearImpl>(in, out);
}

TEST(Refused, RanksWithDifferentShapes) {
  expect_disagreement([](int rank) { return linear(4, rank == 0 ? 5 : 50); }, {"rank 0", "rank 1", "weight"});
  expect_disagreement([](int rank) { return rank == 0 ? linear(4, 6) : linear(6, 4); }, {"rank 0", "rank 1", "weight"});
}

TEST(Refused, RanksWithDifferentParameters) {
  expect_disagreement(
      [](int rank) {
        auto model = std::make_shared<Lm>();
        if (rank == 1) model->register_module("extra", Linear(3, 3));
        return model;
      },
      {"rank 0", "rank 1", "extra"});
}

TEST(Refused, RanksThatFreezeDifferentParameters) {
  expect_disagreement(
      [](int rank) {
        auto model = linear(4, 5);
        model->parameters()[1].set_requires_grad(rank == 0);
        return model;
      },
      {"rank 0", "rank 1", "bias"});
}

}  // namespace zero::test::lifecycle_test
