// Gradients that the program reads, changes and empties between the backwards of loops of LibTorch's own.
#include "familiar.h"
#include "familiar_programs.h"
#include "zero/error.h"

namespace zero::test::familiar_gradients_test {

// Whole, the mean that plain LibTorch has, before what the step itself does.
TEST(FamiliarGradients, AreRead) {
  for (const int ranks : {1, 3})
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      Job job = kJob;
      job.ranks = ranks;
      job.plan = Plan::ddp().precision(precision).accumulate(2);
      under_every_plan(job, [](const Job& each) {
        std::vector<at::Tensor> plain;
        {
          Net net;
          initialise(net, kSeed);
          net.eval();
          at::Tensor loss = at::zeros({});
          for (int i = 0; i < 2 * each.ranks; ++i) loss = loss + net.loss(i) / (2 * each.ranks);
          loss.backward();
          for (const at::Tensor& parameter : net.parameters()) plain.push_back(parameter.grad());
        }
        on_ranks<Net>(each, {}, [&](Net& net, Engine& engine, int) {
          net.eval();
          EXPECT_TRUE(
              says(thrown_by([&] { engine.gradient(net.body->weight); }), {"gradient() after 0 of a step's 2"}));
          for (int micro = 0; micro < 2; ++micro) net.loss(engine.micro_batch()).backward();
          const std::vector<at::Tensor> parameters = net.parameters();
          const bool narrow = each.plan.precision() != Precision::fp32;
          for (std::size_t i = 0; i < parameters.size(); ++i)
            EXPECT_TRUE(at::allclose(engine.gradient(parameters[i]), plain[i], 1e-4, narrow ? 2e-2 : 1e-6))
                << engine.gradient(parameters[i]) << plain[i];
          EXPECT_THROW(engine.gradient(at::ones({3})), ConfigError);
          EXPECT_TRUE(engine.step().applied);
        });
      });
    }
}

// Clipping by value: every element once, and what was written is what the step takes.
TEST(FamiliarGradients, AreChanged) {
  const auto clip = [](const GradientSlice& slice) { slice.sum.clamp_(-1e-3 / slice.scale, 1e-3 / slice.scale); };
  Job base = kJob;
  base.options.clip = 0;
  const auto by = [&](const Job& job) {
    return train_by<Net>(job, {}, [&](Net& net, Engine& engine, Outcome& outcome, int) {
      for (int step = 0; step < job.steps; ++step) {
        net.loss(engine.micro_batch()).backward();
        engine.for_each_gradient_slice(clip);
        for (const at::Tensor& parameter : net.parameters())
          EXPECT_LE(engine.gradient(parameter).abs().max().item<double>(), 1e-3 * (1 + 1e-6));
        outcome.record(engine.step());
      }
    });
  };
  for (const int ranks : {1, 2}) {
    base.ranks = ranks;
    const Outcome expected = by(base);
    under_every_plan(base, [&](const Job& each) { EXPECT_EQ(difference(expected, by(each)), ""); });
  }
  Net net;
  initialise(net, kSeed);
  net.eval();
  Job alone = base;
  alone.ranks = 1;
  torch::optim::SGD plain(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<double> losses;
  for (int step = 0; step < alone.steps; ++step) {
    plain.zero_grad();
    const at::Tensor loss = net.loss(step);
    loss.backward();
    losses.push_back(loss.item<double>());
    torch::nn::utils::clip_grad_value_(net.parameters(), 1e-3);
    plain.step();
  }
  const Outcome run = train_by<Net>(alone, {}, [&](Net& ours, Engine& engine, Outcome& outcome, int) {
    ours.eval();
    for (int step = 0; step < alone.steps; ++step) {
      ours.loss(engine.micro_batch()).backward();
      engine.for_each_gradient_slice(clip);
      outcome.record(engine.step());
    }
  });
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(run.losses[i], losses[i], 1e-6);
}

// Memory that is the engine's again, or nobody's, is not read by who kept a slice, or a view of one.
TEST(FamiliarGradients, AreNotKept) {
  Job base = kJob;
  base.ranks = 2;
  under_every_plan(base, [](const Job& job) {
    on_ranks<Net>(job, {}, [](Net& net, Engine& engine, int) {
      net.loss(engine.micro_batch()).backward();
      std::vector<at::Tensor> kept, clones;
      engine.for_each_gradient_slice([&](const GradientSlice& slice) {
        clones.push_back(slice.sum.clone());
        kept.push_back(slice.sum);
        kept.push_back(slice.sum.narrow(0, 0, 1));
      });
      const std::vector<std::string> words{"the gradient slice of parameter '", "clone what is to be kept"};
      for (const at::Tensor& each : kept) {
        EXPECT_TRUE(says(thrown_by([&] { (void)each.sum().item<float>(); }), words));
        EXPECT_TRUE(says(thrown_by([&] { at::Tensor(each).zero_(); }), words));
        EXPECT_TRUE(says(thrown_by([&] { (void)each.const_data_ptr(); }), words));
      }
      EXPECT_EQ(thrown_by([&] {
                  engine.for_each_gradient_slice([&](const GradientSlice& slice) {
                    kept.push_back(slice.sum);
                    throw ConfigError("left");
                  });
                }),
                "left");
      EXPECT_TRUE(says(thrown_by([&] { (void)kept.back().sum(); }), words));
      std::size_t next = 0;
      engine.for_each_gradient_slice(
          [&](const GradientSlice& slice) { EXPECT_TRUE(slice.sum.equal(clones.at(next++))); });
      EXPECT_TRUE(engine.step().applied);
    });
  });
}

// The usual loop of a GAN, whose critic is emptied at the start of its own step.
void adversarial(Generator& generator, Critic& critic, torch::optim::Optimizer& for_generator,
                 torch::optim::Optimizer& for_critic, const Batches& data) {
  for (const auto& [noise, real] : data) {
    critic->zero_grad();
    (-critic->forward(real).square().mean()).backward();
    critic->forward(generator->forward(noise).detach()).square().mean().backward();
    for_critic.step();
    generator->zero_grad();
    (-critic->forward(generator->forward(noise)).square().mean()).backward();
    for_generator.step();
  }
}

TEST(FamiliarLoops, TrainAdversaries) {
  expect_as_plain([](int data_of, const auto&... engine) {
    auto generator = begun<Generator>();
    auto critic = begun<Critic>(kSeed + 100);
    if constexpr (sizeof...(engine) == 0) {
      torch::optim::SGD for_generator(generator->parameters(), 0.1), for_critic(critic->parameters(), 0.1);
      adversarial(generator, critic, for_generator, for_critic, batches(data_of, 4, 3));
    } else {
      Engine for_generator(*generator, engine..., Sgd{.lr = 0.1}), for_critic(*critic, engine..., Sgd{.lr = 0.1});
      adversarial(generator, critic, for_generator.optimizer(), for_critic.optimizer(), batches(data_of, 4, 3));
      for_generator.release();
      for_critic.release();
    }
    return left_by({{"generator.", generator.get()}, {"critic.", critic.get()}});
  });
}

}  // namespace zero::test::familiar_gradients_test
