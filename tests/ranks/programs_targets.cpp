// Networks that follow another one: moving averages, targets inside and outside the engine, frozen teachers.
#include <torch/torch.h>

#include "programs.h"

namespace zero::test::programs_targets {

namespace F = torch::nn::functional;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr std::int64_t kBatch = 5;

Sequential perceptron(std::int64_t in, std::int64_t out) {
  return Sequential(Linear(in, 48), torch::nn::LayerNorm(torch::nn::LayerNormOptions({48})), torch::nn::GELU(),
                    Linear(48, 40), torch::nn::Tanh(), Linear(40, out));
}

void record_all(Run& run, const std::string& prefix, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) run.record(prefix + item.key(), item.value());
}

// An exponential moving average of the weights, kept beside the network in fp32 and evaluated with.
struct Averaged : Program {
  explicit Averaged(Run& run) : trainer(run.trainer(*network, kAdamW)) {
    const auto scope = gather(network->parameters());
    const torch::NoGradGuard no_grad;
    average->to(device_of_rank());
    for (std::size_t i = 0; i < average->parameters().size(); ++i)
      average->parameters()[i].copy_(network->parameters()[i]);
  }
  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) {
      const at::Tensor output = network->forward(numbers(index, {kBatch, 10})).to(at::kFloat);
      trainer.backward(F::cross_entropy(output, tokens(index, {kBatch}, 4)));
    });
    trainer.step();
    const torch::NoGradGuard no_grad;
    {
      const auto scope = gather(network->parameters());
      for (std::size_t i = 0; i < average->parameters().size(); ++i)
        average->parameters()[i].mul_(0.8).add_(network->parameters()[i], 0.2);
    }
    run.record("evaluated " + std::to_string(step), average->forward(numbers(1000, {kBatch, 10})).to(at::kFloat));
  }
  void finish(Run& run) override { record_all(run, "average ", *average); }
  Sequential network = perceptron(10, 4), average = perceptron(10, 4);
  Trainer& trainer;
};

// The same by named_parameters(), one small scope for each, which a program with little memory does.
struct AveragedOneByOne : Program {
  explicit AveragedOneByOne(Run& run) : trainer(run.trainer(*network, kSgdMomentum)) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) {
      trainer.backward(network->forward(numbers(index, {kBatch, 10})).to(at::kFloat).square().mean());
    });
    trainer.step();
    const torch::NoGradGuard no_grad;
    for (const auto& item : network->named_parameters()) {
      const auto scope = gather({item.value()});
      at::Tensor& mean = average[item.key()];
      const at::Tensor now = item.value().detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
      mean = mean.defined() ? mean.lerp(now, 0.1) : now;
    }
  }
  void finish(Run& run) override {
    for (const auto& [name, mean] : average) run.record(name, mean);
  }
  Sequential network = perceptron(10, 4);
  Trainer& trainer;
  std::map<std::string, at::Tensor> average;
};

// Deep Q-learning: the target is a copy taken now and then with clone(), outside any engine.
struct DeepQ : Program {
  explicit DeepQ(Run& run) : trainer(run.trainer(*network, kAdamW)) { follow(); }
  // The copy has the dtype that the network is stored in.
  void follow() {
    target = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(network->clone());
    target->to(at::kFloat);
  }
  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) {
      const at::Tensor state = numbers(index, {kBatch, 7}), next = numbers(index + 3000, {kBatch, 7});
      const at::Tensor action = tokens(index, {kBatch, 1}, 3);
      at::Tensor goal;
      {
        const torch::NoGradGuard no_grad;
        goal = numbers(index + 6000, {kBatch}) + 0.9 * std::get<0>(target->forward(next).to(at::kFloat).max(1));
      }
      const at::Tensor value = network->forward(state).to(at::kFloat).gather(1, action).squeeze(1);
      trainer.backward(F::smooth_l1_loss(value, goal));
    });
    trainer.step();
    if (step % 2 == 1) follow();
  }
  void finish(Run& run) override { record_all(run, "target ", *target); }
  Sequential network = perceptron(7, 3);
  std::shared_ptr<torch::nn::SequentialImpl> target;
  Trainer& trainer;
};

// Self-distillation (BYOL): student and teacher are parts of one module, so that the engine has both; the teacher is
// frozen and written in scopes.
struct Pair : torch::nn::Module {
  Pair() {
    for (at::Tensor& parameter : teacher->parameters()) parameter.set_requires_grad(false);
  }
  Sequential student = register_module("student", perceptron(10, 8)),
             teacher = register_module("teacher", perceptron(10, 8)),
             predictor = register_module("predictor", Sequential(Linear(8, 40), torch::nn::ReLU(), Linear(40, 8)));
};
struct Byol : Program {
  explicit Byol(Run& run) : trainer(run.trainer(pair, kAdamW)) {}
  at::Tensor distance(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor guess = pair.predictor->forward(pair.student->forward(a)).to(at::kFloat);
    at::Tensor goal;
    {
      const torch::NoGradGuard no_grad;
      goal = pair.teacher->forward(b).to(at::kFloat);
    }
    return (2 - 2 * F::cosine_similarity(guess, goal, F::CosineSimilarityFuncOptions().dim(1))).mean();
  }
  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) {
      const at::Tensor x = numbers(index, {kBatch, 10});
      const at::Tensor a = x + 0.1 * numbers(index + 1000, {kBatch, 10}), b = x * 1.1;
      trainer.backward(distance(a, b) + distance(b, a));
    });
    trainer.step();
    const torch::NoGradGuard no_grad;
    const auto scope = gather(pair.parameters());
    for (std::size_t i = 0; i < pair.teacher->parameters().size(); ++i)
      pair.teacher->parameters()[i].lerp_(pair.student->parameters()[i], 0.125);
  }
  Pair pair;
  Trainer& trainer;
};

// Knowledge distillation: the teacher has an engine of its own that only shards it, and is trained once in between.
struct Distilled : Program {
  explicit Distilled(Run& run)
      : of_student(run.trainer(*student, kAdamW)), of_teacher(run.trainer(*teacher, kSgdMomentum)) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) {
      const at::Tensor x = numbers(index, {kBatch, 10});
      teacher->eval();
      at::Tensor goal;
      {
        const torch::NoGradGuard no_grad;
        goal = torch::softmax(teacher->forward(x).to(at::kFloat) / 2, 1);
      }
      const at::Tensor guess = torch::log_softmax(student->forward(x).to(at::kFloat) / 2, 1);
      of_student.backward(F::kl_div(guess, goal, F::KLDivFuncOptions(torch::kBatchMean)));
    });
    of_student.step();
    run.each(step, [&](int, std::int64_t index) {
      const at::Tensor output = teacher->forward(numbers(index, {kBatch, 10})).to(at::kFloat);
      of_teacher.backward(F::cross_entropy(output, tokens(index, {kBatch}, 4)));
    });
    of_teacher.step();
  }
  Sequential student{Linear(10, 40), torch::nn::ReLU(), Linear(40, 4)}, teacher = perceptron(10, 4);
  Trainer &of_student, &of_teacher;
};

std::vector<ProgramRow> rows() {
  return {{"MovingAverageOfTheWeights", program<Averaged>()},
          {"MovingAverageInScopesOfOneParameter", program<AveragedOneByOne>()},
          {"DeepQWithAClonedTarget", program<DeepQ>(), {.steps = 5}},
          {"ATeacherInsideTheEngine", program<Byol>()},
          {"ATeacherWithAnEngineOfItsOwn", program<Distilled>()}};
}

}  // namespace zero::test::programs_targets
