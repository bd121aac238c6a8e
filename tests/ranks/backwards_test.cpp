// Several backwards before a step, and backwards that reach another engine's parameters.
#include <torch/torch.h>

#include "harness.h"
#include "zero/error.h"

namespace zero::test::backwards_test {

using torch::nn::Linear;

struct TwoHeads : torch::nn::Module {
  at::Tensor trunk(std::int64_t index) { return torch::tanh(body(numbers(index, {4, 7}))); }
  at::Tensor first(const at::Tensor& hidden) { return left(hidden).to(at::kFloat).square().mean(); }
  at::Tensor second(const at::Tensor& hidden) { return right(hidden).to(at::kFloat).abs().mean(); }
  at::Tensor loss(std::int64_t index) {
    const at::Tensor hidden = trunk(index);
    return first(hidden) + second(hidden);
  }
  Linear body = register_module("body", Linear(7, 90));
  Linear left = register_module("left", Linear(90, 3)), right = register_module("right", Linear(90, 2));
};

const Job kJob{.optimizer = Sgd{.lr = 0.1, .momentum = 0.9}, .options = {.clip = 1}, .steps = 4};

// Two losses of two forwards, each with a backward of its own.
Outcome train_apart(const Job& job) {
  return train_by<TwoHeads>(job, {}, [&](TwoHeads& model, Engine& engine, Outcome& run, int) {
    for (int step = 0; step < job.steps; ++step) {
      const std::int64_t index = engine.micro_batch();
      engine.backward(model.first(model.trunk(index)));
      engine.backward(model.second(model.trunk(index)));
      run.record(engine.step());
    }
  });
}

Outcome train_apart_plain(const Job& job) {
  TwoHeads model;
  initialise(model, kSeed);
  PlainTrainer trainer(model, job);
  for (int step = 0; step < job.steps; ++step) {
    for (int i = 0; i < job.ranks; ++i) trainer.backward(model.first(model.trunk(step * job.ranks + i)));
    for (int i = 0; i < job.ranks; ++i) trainer.backward(model.second(model.trunk(step * job.ranks + i)));
    trainer.step();
  }
  return trainer.finish();
}

TEST(Backwards, OfTwoLossesAddUpAlikeUnderEveryPlan) {
  for (const int ranks : {1, 2, 3})
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      Job job = kJob;
      job.ranks = ranks;
      job.plan = Plan::ddp().precision(precision);
      const Outcome expected = train_apart(job);
      if (precision == Precision::fp32) {
        EXPECT_EQ(difference(train_apart_plain(job), expected, 1e-6), "");
      }
      under_every_plan(job, [&](const Job& each) { EXPECT_EQ(difference(expected, train_apart(each)), ""); });
    }
}

TEST(Backwards, OfTwoLossesAreTakenByAReproduciblePlan) {
  Job job = kJob;
  std::vector<Outcome> runs;
  for (const Plan& plan : all_plans()) {
    job.plan = plan.reproducible(true);
    runs.push_back(train_apart(job));
    EXPECT_EQ(difference(runs.front(), runs.back()), "") << plan.label();
  }
  job.plan = Plan::zero2().reproducible(true).accumulate(2);
  on_ranks<TwoHeads>(job, {}, [](TwoHeads& model, Engine& engine, int) {
    for (int i = 0; i < 2; ++i) engine.backward(model.loss(i));
    EXPECT_THROW(engine.backward(model.loss(2)), StateError);
  });
}

// A step with more backwards than planned leaves nothing behind: the next ones are those of another engine.
TEST(Backwards, BeyondThePlanAreForgottenAfterTheStep) {
  for (const Plan& plan : all_plans())
    for (const int backwards : {1, 3}) {
      Job job{.plan = plan.bf16(), .ranks = 2, .optimizer = Sgd{.lr = 0}};
      on_ranks<TwoHeads>(job, {}, [&](TwoHeads& model, Engine& engine, int) {
        for (int i = 0; i < backwards; ++i) engine.backward(model.loss(i));
        engine.step();
        engine.backward(model.loss(5));
        EXPECT_EQ(engine.ledger()[Owner::gradient].bytes, engine.estimate().state.gradient)
            << plan.label() << " after " << backwards;
        engine.step();
      });
    }
}

struct Generator : torch::nn::Module {
  at::Tensor forward(const at::Tensor& z) { return out(torch::tanh(in(z))); }
  Linear in = register_module("in", Linear(4, 9)), out = register_module("out", Linear(9, 3));
};
struct Critic : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(in(x))).to(at::kFloat).mean(); }
  Linear in = register_module("in", Linear(3, 8)), out = register_module("out", Linear(8, 1));
};

struct Pair {
  Outcome generator, critic;
};

Pair train_pair(const Job& job, const std::function<void(Generator&, Critic&, Engine&, Engine&, std::int64_t)>& step,
                const Options& of_critic = {}) {
  std::vector<Pair> runs(static_cast<std::size_t>(job.ranks));
  run_ranks(job.ranks, [&](const World& world) {
    Generator generator;
    Critic critic;
    initialise(generator, kSeed);
    initialise(critic, kSeed + 100);
    Engine for_generator(generator, world, job.plan, job.optimizer);
    Engine for_critic(critic, world, job.plan, job.optimizer, of_critic);
    for (int i = 0; i < job.steps; ++i)
      step(generator, critic, for_generator, for_critic, i * job.ranks + world.rank());
    Pair& run = runs[static_cast<std::size_t>(world.rank())];
    run.generator.parameters = parameters_of(generator, for_generator);
    run.critic.parameters = parameters_of(critic, for_critic);
  });
  return runs.front();
}

// The usual loop: nobody freezes the critic while the generator learns.
void adversarial_step(Generator& generator, Critic& critic, Engine& for_generator, Engine& for_critic,
                      std::int64_t index) {
  const at::Tensor z = numbers(index, {5, 4}), real = numbers(index + 5000, {5, 3});
  for_critic.backward(critic.forward(generator.forward(z).detach()) - critic.forward(real));
  for_critic.step();
  for_generator.backward(-critic.forward(generator.forward(z)));
  for_generator.step();
}

// The gradients that reach the critic from the generator's loss are dropped, as zero_grad() drops them.
Pair train_pair_plain(const Job& job) {
  Generator generator;
  Critic critic;
  initialise(generator, kSeed);
  initialise(critic, kSeed + 100);
  PlainTrainer for_generator(generator, job), for_critic(critic, job);
  for (int step = 0; step < job.steps; ++step) {
    for (int rank = 0; rank < job.ranks; ++rank) {
      const std::int64_t index = step * job.ranks + rank;
      const at::Tensor z = numbers(index, {5, 4}), real = numbers(index + 5000, {5, 3});
      for_critic.backward(critic.forward(generator.forward(z).detach()) - critic.forward(real));
    }
    for_critic.step();
    for (int rank = 0; rank < job.ranks; ++rank)
      for_generator.backward(-critic.forward(generator.forward(numbers(step * job.ranks + rank, {5, 4}))));
    for_generator.step();
    for (at::Tensor& parameter : critic.parameters()) parameter.mutable_grad() = at::Tensor();
  }
  return {for_generator.finish(), for_critic.finish()};
}

TEST(Backwards, OfAGeneratorPassThroughTheCriticOfAnotherEngine) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    Job job = kJob;
    job.options = {};
    job.plan = Plan::ddp().precision(precision);
    const Pair expected = train_pair(job, adversarial_step);
    if (precision == Precision::fp32) {
      const Pair plain = train_pair_plain(job);
      EXPECT_EQ(difference(Outcome{{}, {}, plain.generator.parameters}, expected.generator, 1e-6), "");
      EXPECT_EQ(difference(Outcome{{}, {}, plain.critic.parameters}, expected.critic, 1e-6), "");
    }
    under_every_plan(job, [&](const Job& each) {
      const Pair run = train_pair(each, adversarial_step);
      EXPECT_EQ(difference(expected.generator, run.generator), "");
      EXPECT_EQ(difference(expected.critic, run.critic), "");
    });
  }
}

// One loss, two engines.
void joint_step(Generator& generator, Critic& critic, Engine& for_generator, Engine& for_critic, std::int64_t index) {
  for_generator.backward(critic.forward(generator.forward(numbers(index, {5, 4}))).square());
  EXPECT_TRUE(for_generator.step().applied);
  EXPECT_TRUE(for_critic.step().applied);
}

TEST(Backwards, MayTrainTheParametersOfAnotherEngine) {
  Job job = kJob;
  job.options = {};
  job.ranks = 3;
  Generator generator;
  Critic critic;
  initialise(generator, kSeed);
  initialise(critic, kSeed + 100);
  PlainTrainer for_generator(generator, job), for_critic(critic, job);
  for (int step = 0; step < job.steps; ++step) {
    for (int rank = 0; rank < job.ranks; ++rank)
      for_generator.backward(critic.forward(generator.forward(numbers(step * job.ranks + rank, {5, 4}))).square());
    for_generator.step();
    for_critic.step();
  }
  const Outcome plain_generator{{}, {}, for_generator.finish().parameters};
  const Outcome plain_critic{{}, {}, for_critic.finish().parameters};
  const Options add{.outside = OutsideGradients::add};
  const Pair expected = train_pair(job, joint_step, add);
  EXPECT_EQ(difference(plain_generator, expected.generator, 1e-6), "");
  EXPECT_EQ(difference(plain_critic, expected.critic, 1e-6), "");
  under_every_plan(job, [&](const Job& each) {
    const Pair run = train_pair(each, joint_step, add);
    EXPECT_EQ(difference(expected.generator, run.generator), "");
    EXPECT_EQ(difference(expected.critic, run.critic), "");
  });
}

TEST(Backwards, WithAnotherLossScaleAreNotAdded) {
  const Options add{.loss_scale = LossScale::fixed(4), .outside = OutsideGradients::add};
  EXPECT_THROW(train_pair({}, joint_step, add), RankError);
}

TEST(Backwards, OutsideOfAnyEngineStillSaySo) {
  on_ranks<TwoHeads>({}, {}, [](TwoHeads& model, Engine&, int) {
    EXPECT_THROW(torch::autograd::backward({model.loss(1)}), StateError);
  });
}

}  // namespace zero::test::backwards_test
