// The programs of docs/migrating.md, each twice: for plain LibTorch, and with the lines changed that its diff shows.
// unit/documented_code_test holds the document against this file.
#include "familiar_programs.h"

namespace zero::test::familiar_programs_test {

// The ranks, and a part of the examples for each.
TEST(FamiliarPrograms, Begin) {
  constexpr std::size_t examples = 12;
  const zero::World world = zero::init();  // one rank without a launcher
  torch::data::samplers::DistributedRandomSampler sampler(examples, world.size(), world.rank());
  const zero::Plan plan = zero::Plan::zero3();
  EXPECT_EQ(sampler.next(examples)->size(), examples);
  EXPECT_EQ(plan, Plan::zero3());
}

class Trainer {
 public:
  Trainer(Regressor net, torch::optim::Optimizer& optimizer) : net_(std::move(net)), optimizer_(optimizer) {}

  void epoch(const Batches& data) {
    for (const auto& [x, y] : data) {
      optimizer_.zero_grad();
      torch::mse_loss(net_->forward(x), y).backward();
      optimizer_.step();
    }
  }

 private:
  Regressor net_;
  torch::optim::Optimizer& optimizer_;
};

void train(Regressor& net, const Batches& data) {
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-4));
  Trainer trainer(net, optimizer);
  for (int epoch = 0; epoch < 2; ++epoch) trainer.epoch(data);
}

void train(Regressor& net, const Batches& data, const zero::World& world, const zero::Plan& plan) {
  zero::Engine engine(*net, world, plan, zero::AdamW{.lr = 1e-2, .eps = 1e-4});
  Trainer trainer(net, engine.optimizer());
  for (int epoch = 0; epoch < 2; ++epoch) trainer.epoch(data);
  engine.release();
}

TEST(FamiliarPrograms, ATrainerThatTakesAnOptimizer) {
  expect_loop_as_plain([](auto&&... of) { train(of...); });
}

void schedule(Regressor& net, const Batches& data) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::StepLR schedule(optimizer, /*step_size=*/2, /*gamma=*/0.5);
  for (const auto& [x, y] : data) {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    optimizer.step();
    schedule.step();
  }
}

void schedule(Regressor& net, const Batches& data, const zero::World& world, const zero::Plan& plan) {
  zero::Engine engine(*net, world, plan, zero::Sgd{.lr = 0.1, .momentum = 0.9});
  torch::optim::Optimizer& optimizer = engine.optimizer();
  torch::optim::StepLR schedule(optimizer, /*step_size=*/2, /*gamma=*/0.5);
  for (const auto& [x, y] : data) {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    optimizer.step();
    schedule.step();
  }
  engine.release();
}

TEST(FamiliarPrograms, ASchedule) {
  expect_loop_as_plain([](auto&&... of) { schedule(of...); }, 3, 6);
}

void clip(Regressor& net, const Batches& data) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (const auto& [x, y] : data) {
    net->zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    torch::nn::utils::clip_grad_value_(net->parameters(), 0.01);
    optimizer.step();
  }
}

void clip(Regressor& net, const Batches& data, const zero::World& world, const zero::Plan& plan) {
  zero::Engine optimizer(*net, world, plan, zero::Sgd{.lr = 0.1, .momentum = 0.9});
  for (const auto& [x, y] : data) {
    net->zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    optimizer.for_each_gradient_slice([](auto& g) { g.sum.clamp_(-0.01 / g.scale, 0.01 / g.scale); });
    optimizer.step();
  }
  optimizer.release();
}

TEST(FamiliarPrograms, ClippingByValue) {
  expect_loop_as_plain([](auto&&... of) { clip(of...); });
}

std::vector<torch::Tensor> average(Regressor& net, const Batches& data) {
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-4));
  const std::vector<torch::Tensor> weights = net->parameters();
  std::vector<torch::Tensor> average;
  for (const torch::Tensor& weight : weights) average.push_back(weight.detach().clone());
  for (const auto& [x, y] : data) {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    optimizer.step();
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < weights.size(); ++i) average[i].lerp_(weights[i], 0.1);
  }
  return average;
}

std::vector<torch::Tensor> average(Regressor& net, const Batches& data, const zero::World& world,
                                   const zero::Plan& plan) {
  zero::Engine engine(*net, world, plan, zero::AdamW{.lr = 1e-2, .eps = 1e-4});
  torch::optim::Optimizer& optimizer = engine.optimizer();
  const std::vector<torch::Tensor> weights = net->parameters();
  std::vector<torch::Tensor> average;
  for (const torch::Tensor& weight : weights) average.push_back(weight.detach().clone());
  for (const auto& [x, y] : data) {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    optimizer.step();
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < weights.size(); ++i) average[i].lerp_(weights[i], 0.1);
  }
  engine.release();
  return average;
}

TEST(FamiliarPrograms, AMovingAverage) {
  expect_as_plain([](int data_of, const auto&... engine) {
    auto net = begun<Regressor>();
    Outcome left;
    for (const torch::Tensor& each : average(net, batches(data_of, 6, 3), engine...))
      left.parameters[std::to_string(left.parameters.size())] = each;
    return left;
  });
}

torch::Tensor judged(const torch::Tensor& logits, double label) {
  return torch::binary_cross_entropy_with_logits(logits, torch::full_like(logits, label));
}

void compete(Generator& generator, Critic& critic, const Batches& data) {
  torch::optim::Adam for_generator(generator->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
  torch::optim::Adam for_critic(critic->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
  for (const auto& [noise, real] : data) {
    critic->zero_grad();
    judged(critic->forward(real), 1).backward();
    const torch::Tensor fake = generator->forward(noise);
    judged(critic->forward(fake.detach()), 0).backward();
    for_critic.step();
    generator->zero_grad();
    judged(critic->forward(fake), 1).backward();
    for_generator.step();
  }
}

void compete(Generator& generator, Critic& critic, const Batches& data, const zero::World& world,
             const zero::Plan& plan) {
  zero::Engine for_generator(*generator, world, plan, zero::Adam{.lr = 1e-2, .eps = 1e-4});
  zero::Engine for_critic(*critic, world, plan, zero::Adam{.lr = 1e-2, .eps = 1e-4});
  for (const auto& [noise, real] : data) {
    critic->zero_grad();
    judged(critic->forward(real), 1).backward();
    const torch::Tensor fake = generator->forward(noise);
    judged(critic->forward(fake.detach()), 0).backward();
    for_critic.step();
    generator->zero_grad();
    judged(critic->forward(fake), 1).backward();
    for_generator.step();
  }
  for_generator.release();
  for_critic.release();
}

TEST(FamiliarPrograms, AdversarialNetworks) {
  expect_as_plain([](int data_of, const auto&... engine) {
    auto generator = begun<Generator>();
    auto critic = begun<Critic>(kSeed + 100);
    compete(generator, critic, batches(data_of, 4, 3), engine...);
    return left_by({{"generator.", generator.get()}, {"critic.", critic.get()}});
  });
}

struct AgentImpl : torch::nn::Module {
  torch::Tensor features(const torch::Tensor& states) { return torch::tanh(trunk(states)); }
  torch::Tensor log_policy(const torch::Tensor& states) { return torch::log_softmax(actor(features(states)), 1); }
  torch::Tensor worth(const torch::Tensor& states) { return critic(features(states)).squeeze(1); }
  torch::nn::Linear trunk = register_module("trunk", torch::nn::Linear(6, 40));
  torch::nn::Linear actor = register_module("actor", torch::nn::Linear(40, 4));
  torch::nn::Linear critic = register_module("critic", torch::nn::Linear(40, 1));
};
TORCH_MODULE(Agent);

// The action of the state's largest number is the one to take.
torch::Tensor reward_of(const torch::Tensor& states, const torch::Tensor& actions) {
  return states.slice(1, 0, 4).gather(1, actions).squeeze(1);
}

struct Rollout {
  torch::Tensor states, actions, log_before, returns, advantage;
};

Rollout roll_out(Agent& agent, const torch::Tensor& states, torch::Generator& random) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor log_policy = agent->log_policy(states);
  const torch::Tensor actions = log_policy.exp().multinomial(1, /*replacement=*/true, random);
  const torch::Tensor returns = reward_of(states, actions);
  return {states, actions, log_policy.gather(1, actions).squeeze(1), returns, returns - agent->worth(states)};
}

torch::Tensor ppo_loss(Agent& agent, const Rollout& rollout) {
  const torch::Tensor log_policy = agent->log_policy(rollout.states);
  const torch::Tensor ratio = (log_policy.gather(1, rollout.actions).squeeze(1) - rollout.log_before).exp();
  const torch::Tensor gain = torch::minimum(ratio * rollout.advantage, ratio.clamp(0.8, 1.2) * rollout.advantage);
  const torch::Tensor entropy = -(log_policy.exp() * log_policy).sum(1);
  return 0.5 * torch::mse_loss(agent->worth(rollout.states), rollout.returns) - (gain + 0.01 * entropy).mean();
}

void play(Agent& agent, const Batches& episodes, torch::Generator random) {
  torch::optim::Adam optimizer(agent->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
  for (const auto& [states, later] : episodes) {
    const Rollout rollout = roll_out(agent, states, random);
    for (int round = 0; round < 3; ++round) {
      optimizer.zero_grad();
      ppo_loss(agent, rollout).backward();
      torch::nn::utils::clip_grad_norm_(agent->parameters(), 0.5);
      optimizer.step();
    }
  }
}

void play(Agent& agent, const Batches& episodes, torch::Generator random, const zero::World& world,
          const zero::Plan& plan) {
  zero::Engine engine(*agent, world, plan, zero::Adam{.lr = 1e-2, .eps = 1e-4}, {.clip = 0.5});
  torch::optim::Optimizer& optimizer = engine.optimizer();
  for (const auto& [states, later] : episodes) {
    const Rollout rollout = roll_out(agent, states, random);
    for (int round = 0; round < 3; ++round) {
      optimizer.zero_grad();
      ppo_loss(agent, rollout).backward();
      optimizer.step();
    }
  }
  engine.release();
}

torch::Generator dice() {
  return torch::make_generator<at::CPUGeneratorImpl>(std::uint64_t{17});
}

TEST(FamiliarPrograms, ProximalPolicyOptimization) {
  const auto loop = [](Agent& agent, const Batches& episodes, const auto&... engine) {
    play(agent, episodes, dice(), engine...);
  };
  expect_loop_as_plain<Agent>(loop, 1);
}

}  // namespace zero::test::familiar_programs_test
