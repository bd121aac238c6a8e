// Recipes of docs/recipes.md for more than one network, and for networks of which a part is trained.
// unit/documented_code_test holds the document against this file.
#include <optional>
#include <tuple>

#include "familiar_programs.h"
#include "folder.h"

namespace zero::test::recipes_networks_test {

// GAN with a gradient penalty (WGAN-GP).
torch::Tensor penalty(Critic& critic, const torch::Tensor& real, const torch::Tensor& fake) {
  const torch::Tensor mixed = torch::lerp(real, fake, 0.5).detach().requires_grad_(true);
  const torch::Tensor score = critic->forward(mixed).sum();
  const torch::Tensor slope =
      torch::autograd::grad({score}, {mixed}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  return (slope.norm(2, 1) - 1).square().mean();
}

void compete(Generator& generator, Critic& critic, const Batches& data, const zero::World& world,
             const zero::Plan& plan) {
  zero::Engine for_generator(*generator, world, plan, zero::RmsProp{.lr = 1e-3});
  zero::Engine for_critic(*critic, world, plan, zero::RmsProp{.lr = 1e-3});
  for (const auto& [noise, real] : data) {
    const torch::Tensor fake = generator->forward(noise);
    const torch::Tensor distance = critic->forward(fake.detach()).mean() - critic->forward(real).mean();
    for_critic.backward(distance + 10 * penalty(critic, real, fake.detach()));
    for_critic.step();
    for_generator.backward(-critic->forward(fake).mean());  // what it brings to the critic's weights is dropped
    for_generator.step();
  }
  for_generator.release();
  for_critic.release();
}

void compete(Generator& generator, Critic& critic, const Batches& data) {
  torch::optim::RMSprop for_generator(generator->parameters(), 1e-3), for_critic(critic->parameters(), 1e-3);
  for (const auto& [noise, real] : data) {
    const torch::Tensor fake = generator->forward(noise);
    const torch::Tensor distance = critic->forward(fake.detach()).mean() - critic->forward(real).mean();
    for_critic.zero_grad();
    (distance + 10 * penalty(critic, real, fake.detach())).backward();
    for_critic.step();
    for_generator.zero_grad();
    (-critic->forward(fake).mean()).backward();
    for_generator.step();
  }
}

TEST(NetworkRecipes, AdversarialNetworksWithAGradientPenalty) {
  expect_as_plain([](int data_of, const auto&... engine) {
    auto generator = begun<Generator>();
    auto critic = begun<Critic>(kSeed + 100);
    compete(generator, critic, batches(data_of, 4, 3), engine...);
    return left_by({{"generator.", generator.get()}, {"critic.", critic.get()}});
  });
}

// A copy that follows a network: an average of its weights, a target network.
void follow(Regressor& copy, const Regressor& net, double share) {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> to = copy->parameters(), from = net->parameters();
  for (std::size_t i = 0; i < to.size(); ++i) to[i].lerp_(from[i].to(torch::kFloat), share);
}

void average(Regressor& net, Regressor& average, const Batches& data, const zero::World& world,
             const zero::Plan& plan) {
  zero::Engine engine(*net, world, plan, zero::AdamW{.lr = 1e-2});
  follow(average, net, 1);
  for (const auto& [x, y] : data) {
    engine.backward(torch::mse_loss(net->forward(x), y));
    engine.step();
    follow(average, net, 0.01);
  }
  engine.release();
}

TEST(NetworkRecipes, AnAverageOfTheWeights) {
  const Outcome alone = expect_same_bits([](const World& world, const Plan& plan, int data_of) {
    auto net = begun<Regressor>(), mean = begun<Regressor>(kSeed + 50);
    average(net, mean, batches(data_of, 6, 3, 1), world, plan);
    return left_by({{"net.", net.get()}, {"average.", mean.get()}});
  });
  const Outcome first = left_by({{"", begun<Regressor>().get()}});
  for (const auto& [name, value] : first.parameters)
    EXPECT_TRUE(at::allclose(alone.parameters.at("average." + name),
                             value.lerp(alone.parameters.at("net." + name), 0.01), 1e-6, 1e-7))
        << name;
}

// The same where the average is to be sharded as the network is.
struct AveragedImpl : torch::nn::Module {
  AveragedImpl() {
    for (torch::Tensor& weight : average->parameters()) weight.requires_grad_(false);
  }
  Regressor net = register_module("net", Regressor()), average = register_module("average", Regressor());
};
TORCH_MODULE(Averaged);

void follow(Averaged& both, double share) {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> to = both->average->parameters(), from = both->net->parameters();
  for (std::size_t i = 0; i < to.size(); ++i) {
    const auto whole = zero::gather({to[i]});  // a unit at a time is whole, and what is written to it is kept
    to[i].lerp_(from[i].to(to[i].dtype()), share);
  }
}

TEST(NetworkRecipes, AnAverageThatIsSharded) {
  const OnARank in_parts = [](const World& world, const Plan& plan, int data_of) {
    auto both = begun<Averaged>();
    zero::Engine engine(*both, world, plan, zero::AdamW{.lr = 1e-2});
    follow(both, 1);
    for (const auto& [x, y] : batches(data_of, 6, 3)) {
      engine.backward(torch::mse_loss(both->net->forward(x), y));
      engine.step();
      follow(both, 0.1);
    }
    engine.release();
    return left_by({{"", both.get()}});
  };
  const OnARank whole = [](const World& world, const Plan& plan, int data_of) {
    auto net = begun<Averaged>()->net, mean = begun<Regressor>();
    zero::Engine engine(*net, world, plan, zero::AdamW{.lr = 1e-2});
    follow(mean, net, 1);
    for (const auto& [x, y] : batches(data_of, 6, 3)) {
      engine.backward(torch::mse_loss(net->forward(x), y));
      engine.step();
      follow(mean, net, 0.1);
    }
    engine.release();
    return left_by({{"net.", net.get()}, {"average.", mean.get()}});
  };
  EXPECT_EQ(difference(expect_same_bits(in_parts), run_of(whole, Plan::ddp(), 1, true)), "");
}

// Deep Q-learning.
struct Transition {
  torch::Tensor state, action, reward, next;
};

std::vector<Transition> replayed(int rank) {
  std::vector<Transition> transitions;
  for (int i = 0; i < 5; ++i) {
    const int at = 100 * rank + i;
    transitions.push_back(
        {numbers(at, {5, 6}), tokens(at, {5, 1}, 3), numbers(at + 1000, {5}), numbers(at + 2000, {5, 6})});
  }
  return transitions;
}

void learn_values(Regressor& values, Regressor& target, const std::vector<Transition>& replay, const zero::World& world,
                  const zero::Plan& plan) {
  zero::Engine engine(*values, world, plan, zero::AdamW{.lr = 1e-2});
  follow(target, values, 1);
  for (const auto& [state, action, reward, next] : replay) {
    torch::Tensor goal;
    {
      const torch::NoGradGuard no_grad;
      goal = reward + 0.9 * std::get<0>(target->forward(next).max(1));
    }
    engine.backward(torch::smooth_l1_loss(values->forward(state).gather(1, action).squeeze(1), goal));
    engine.step();
    if (engine.steps() % 2 == 0) follow(target, values, 1);  // or, after each step, follow(target, values, 0.005)
  }
  engine.release();
}

TEST(NetworkRecipes, ATargetNetwork) {
  const Outcome alone = expect_same_bits([](const World& world, const Plan& plan, int data_of) {
    auto values = begun<Regressor>(), target = begun<Regressor>(kSeed + 50);
    learn_values(values, target, replayed(data_of), world, plan);
    return left_by({{"values.", values.get()}, {"target.", target.get()}});
  });
  EXPECT_FALSE(alone.parameters.at("values.head.weight").equal(alone.parameters.at("target.head.weight")));
}

// Low-rank adapters on a frozen base.
struct LoraImpl : torch::nn::Module {
  LoraImpl(std::int64_t in, std::int64_t out, std::int64_t rank)
      : base(register_module("base", torch::nn::Linear(in, out))),
        down(register_module("down", torch::nn::Linear(torch::nn::LinearOptions(in, rank).bias(false)))),
        up(register_module("up", torch::nn::Linear(torch::nn::LinearOptions(rank, out).bias(false)))) {
    for (torch::Tensor& weight : base->parameters()) weight.requires_grad_(false);
    torch::nn::init::zeros_(up->weight);
  }
  torch::Tensor forward(const torch::Tensor& x) { return base(x) + up(down(x)); }

  torch::nn::Linear base, down, up;
};
TORCH_MODULE(Lora);

void adapt(Lora& net, const Batches& data, const std::string& folder, const zero::World& world,
           const zero::Plan& plan) {
  zero::Engine engine(*net, world, plan, zero::AdamW{.lr = 1e-2});  // nothing but the weight is held of what is frozen
  for (const auto& [x, y] : data) {
    engine.backward(torch::mse_loss(net->forward(x), y));
    engine.step();
  }
  engine.save(folder, {.frozen = false});  // the adapters alone
  engine.release();
}

Lora lora() {
  return begun<Lora>(kSeed, Lora(6, 200, 2));
}

// What they save goes on under another plan, on the base that is there.
TEST(NetworkRecipes, Adapters) {
  const Outcome first = left_by({{"", lora().get()}});
  std::optional<Outcome> ddp;
  for (const Plan& plan : all_plans()) {
    SCOPED_TRACE(plan.label());
    const Folder folder;
    const auto left = [&](const OnARank& program, const Plan& by, int ranks) {
      return run_of(program, by, ranks, false);
    };
    const Outcome trained = left(
        [&](const World& world, const Plan& by, int data_of) {
          auto net = lora();
          adapt(net, batches(data_of, 6, 200), folder.path(), world, by);
          return left_by({{"", net.get()}});
        },
        plan, 2);
    const Outcome loaded = left(
        [&](const World& world, const Plan& by, int) {
          auto net = lora();
          net->up->weight.data().zero_();
          zero::Engine engine(*net, world, by, zero::AdamW{.lr = 1e-2});
          engine.load(folder.path());
          engine.release();
          return left_by({{"", net.get()}});
        },
        Plan::zero3(), 4);
    EXPECT_EQ(difference(trained, loaded), "");
    EXPECT_EQ(difference(ddp.value_or(trained), trained), "");
    ddp = trained;
    EXPECT_TRUE(trained.parameters.at("base.weight").equal(first.parameters.at("base.weight")));
    EXPECT_FALSE(trained.parameters.at("up.weight").equal(first.parameters.at("up.weight")));
  }
}

// A part that is frozen when the engine is built, and trained from the third step on.
void adapt_then_tune(Lora& net, const Batches& data, const std::string& folder, const zero::World& world,
                     const zero::Plan& plan) {
  zero::Engine engine(*net, world, plan, zero::AdamW{.lr = 1e-2, .eps = 1e-4});
  for (std::size_t step = 0; step < data.size(); ++step) {
    if (step == 2) net->base->weight.requires_grad_(true);
    engine.backward(torch::mse_loss(net->forward(data[step].first), data[step].second));
    engine.step();
  }
  engine.save(folder, {.frozen = false});  // and what has been trained since
  engine.release();
}

void adapt_then_tune(Lora& net, const Batches& data) {
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-4));
  for (std::size_t step = 0; step < data.size(); ++step) {
    if (step == 2) net->base->weight.requires_grad_(true);
    optimizer.zero_grad();
    torch::mse_loss(net->forward(data[step].first), data[step].second).backward();
    optimizer.step();
  }
}

TEST(NetworkRecipes, WhatIsThawedLaterIsTrainedAndSaved) {
  expect_as_plain([](int data_of, const auto&... engine) {
    auto net = lora();
    if constexpr (sizeof...(engine) == 0) {
      adapt_then_tune(net, batches(data_of, 6, 200));
    } else {
      std::optional<Folder> folder;
      const World& world = std::get<0>(std::tie(engine...));
      if (world.rank() == 0) folder.emplace();
      const std::string path = broadcast_bytes(folder ? folder->path() : "", world);
      adapt_then_tune(net, batches(data_of, 6, 200), path, engine...);
      auto again = lora();
      Engine loaded(*again, engine..., AdamW{.lr = 1e-2});
      loaded.load(path);
      loaded.release();
      barrier(world);
      EXPECT_EQ(difference(left_by({{"", net.get()}}), left_by({{"", again.get()}})), "");
    }
    return left_by({{"", net.get()}});
  });
}

}  // namespace zero::test::recipes_networks_test
