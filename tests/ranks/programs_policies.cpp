// Several forwards before a backward, several backwards before a step: what loops of reinforcement learning and of many
// tasks do.
#include <torch/torch.h>

#include "programs.h"

namespace zero::test::programs_policies {

namespace F = torch::nn::functional;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr std::int64_t kBatch = 6, kState = 9, kActions = 4;

struct ActorCriticImpl : torch::nn::Module {
  at::Tensor features(const at::Tensor& state) { return torch::tanh(trunk->forward(state)); }
  at::Tensor log_probability(const at::Tensor& state) {
    return torch::log_softmax(policy(features(state)).to(at::kFloat), 1);
  }
  at::Tensor worth(const at::Tensor& state) { return value(features(state)).to(at::kFloat).squeeze(1); }
  Sequential trunk = register_module("trunk", Sequential(Linear(kState, 40), torch::nn::Tanh(), Linear(40, 40)));
  Linear policy = register_module("policy", Linear(40, kActions)), value = register_module("value", Linear(40, 1));
};
TORCH_MODULE(ActorCritic);

at::Tensor state_of(std::int64_t index) {
  return numbers(2 * index, {kBatch, kState});
}
at::Tensor next_state_of(std::int64_t index) {
  return numbers(2 * index + 1, {kBatch, kState});
}
at::Tensor actions_of(std::int64_t index) {
  return tokens(index, {kBatch, 1}, kActions);
}
at::Tensor reward_of(std::int64_t index) {
  return numbers(index + 4000, {kBatch});
}

// Proximal policy optimization: what a rollout without gradients noted is used in two rounds of updates, each of three
// forwards and one backward.
struct Ppo : Program {
  explicit Ppo(Run& run) : trainer(run.trainer(*network, kAdamW, {.clip = 0.5})) {}
  struct Rollout {
    at::Tensor log_probability, advantage, returns;
  };
  Rollout roll_out(std::int64_t index) {
    const torch::NoGradGuard no_grad;
    network->eval();
    const at::Tensor worth = network->worth(state_of(index));
    const at::Tensor returns = reward_of(index) + 0.9 * network->worth(next_state_of(index));
    const at::Tensor chosen = network->log_probability(state_of(index)).gather(1, actions_of(index)).squeeze(1);
    network->train();
    return {chosen, returns - worth, returns};
  }
  at::Tensor loss(const Rollout& rollout, std::int64_t index) {
    const at::Tensor now = network->log_probability(state_of(index));
    const at::Tensor worth = network->worth(state_of(index));
    const at::Tensor elsewhere = network->log_probability(next_state_of(index));
    const at::Tensor ratio = (now.gather(1, actions_of(index)).squeeze(1) - rollout.log_probability).exp();
    const at::Tensor surrogate =
        torch::minimum(ratio * rollout.advantage, ratio.clamp(0.8, 1.2) * rollout.advantage).mean();
    const at::Tensor entropy = -(elsewhere.exp() * elsewhere).sum(1).mean();
    return -surrogate + 0.5 * F::mse_loss(worth, rollout.returns) - 0.01 * entropy;
  }
  void step(Run& run, int step) override {
    std::map<int, Rollout> rollouts;
    run.each(step, [&](int lane, std::int64_t index) { rollouts[lane] = roll_out(index); });
    for (int round = 0; round < 2; ++round) {
      run.each(step, [&](int lane, std::int64_t index) { trainer.backward(loss(rollouts.at(lane), index)); });
      trainer.step();
    }
  }
  ActorCritic network;
  Trainer& trainer;
};

// Advantage actor-critic with a backward for each of its losses, of forwards of their own: each leaves a head without
// a gradient, the last one the trunk too.
struct LossByLoss : Program {
  explicit LossByLoss(Run& run) : trainer(run.trainer(*network, kAdamW)) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) {
      const at::Tensor chosen = network->log_probability(state_of(index)).gather(1, actions_of(index)).squeeze(1);
      trainer.backward(-(chosen * reward_of(index)).mean());
      trainer.backward(F::mse_loss(network->worth(state_of(index)), reward_of(index)));
      trainer.backward(0.01 * network->policy->weight.to(at::kFloat).square().sum());
    });
    trainer.step();
  }
  ActorCritic network;
  Trainer& trainer;
};

// Two forwards, whose backwards come in the other order, and a third one of which nothing is made.
struct GraphsInFlight : Program {
  explicit GraphsInFlight(Run& run) : trainer(run.trainer(*network, kSgdMomentum)) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) {
      const at::Tensor first = network->worth(state_of(index)).square().mean();
      const at::Tensor second =
          F::nll_loss(network->log_probability(next_state_of(index)), actions_of(index).squeeze(1));
      watched += network->worth(next_state_of(index)).mean().item<double>();
      trainer.backward(second);
      trainer.backward(first);
    });
    trainer.step();
  }
  ActorCritic network;
  Trainer& trainer;
  double watched = 0;
};

// Tasks with heads of their own, as many backwards as the step has tasks, which is not the same in every step.
struct ManyTasksImpl : torch::nn::Module {
  ManyTasksImpl() {
    for (int i = 0; i < 3; ++i) heads->push_back(Linear(40, 5));
  }
  at::Tensor loss(std::int64_t index, std::size_t task) {
    const at::Tensor x = torch::relu(trunk->forward(numbers(10 * index + static_cast<std::int64_t>(task), {4, 12})));
    return F::cross_entropy(heads[task]->as<Linear>()->forward(x).to(at::kFloat), tokens(index, {4}, 5));
  }
  Sequential trunk = register_module("trunk", Sequential(Linear(12, 40), torch::nn::ReLU(), Linear(40, 40)));
  torch::nn::ModuleList heads = register_module("heads", torch::nn::ModuleList());
};
TORCH_MODULE(ManyTasks);

struct TaskByTask : Program {
  explicit TaskByTask(Run& run) : trainer(run.trainer(*network, kAdamW, {.clip = 1})) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) {
      for (std::size_t task = 0; task <= static_cast<std::size_t>(step % 3); ++task)
        trainer.backward(network->loss(index, task));
    });
    trainer.step();
  }
  ManyTasks network;
  Trainer& trainer;
};

// Contrastive learning: three forwards of one network meet in one loss, with a queue of what earlier ones gave.
struct Contrast : Program {
  explicit Contrast(Run& run) : trainer(run.trainer(*network, kAdamW)) {}
  at::Tensor embedded(const at::Tensor& x) {
    return F::normalize(network->forward(x).to(at::kFloat), F::NormalizeFuncOptions().dim(1));
  }
  void step(Run& run, int step) override {
    run.each(step, [&](int lane, std::int64_t index) {
      const at::Tensor anchor = embedded(state_of(index)), same = embedded(state_of(index) * 1.1);
      at::Tensor& queue = queues[lane];
      if (!queue.defined()) queue = embedded(next_state_of(index)).detach();
      const at::Tensor other = embedded(next_state_of(index));
      const at::Tensor logits =
          torch::cat({(anchor * same).sum(1, true), torch::mm(anchor, other.t()), torch::mm(anchor, queue.t())}, 1);
      trainer.backward(F::cross_entropy(logits / 0.5, at::zeros({kBatch}, actions_of(index).options())));
      queue = torch::cat({other.detach(), queue}).slice(0, 0, 2 * kBatch);
    });
    trainer.step();
  }
  Sequential network{Linear(kState, 40), torch::nn::ReLU(), Linear(40, 36)};
  Trainer& trainer;
  std::map<int, at::Tensor> queues;
};

std::vector<ProgramRow> rows() {
  return {{"PpoWithSeveralForwardsBeforeABackward", program<Ppo>()},
          {"ABackwardForEachLoss", program<LossByLoss>(), {.reproducible = false}},
          {"BackwardsInAnotherOrderThanForwards", program<GraphsInFlight>(), {.reproducible = false}},
          {"AsManyBackwardsAsTasks", program<TaskByTask>(), {.reproducible = false}},
          {"ThreeForwardsInOneLossAndAQueue", program<Contrast>()}};
}

}  // namespace zero::test::programs_policies
