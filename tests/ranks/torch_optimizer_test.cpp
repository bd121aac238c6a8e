// Optimizers of LibTorch's kind on the shards: the same as on whole parameters, and refused where that cannot be.
#include <torch/torch.h>

#include "folder.h"
#include "lm.h"
#include "memory/torch/arena_allocator.h"
#include "torch_optimizers.h"

namespace zero::test::torch_optimizer_test {

std::vector<TorchOptimizer> elementwise() {
  return {brought<torch::optim::AdamW>(torch::optim::AdamWOptions().eps(1e-4), "AdamW"),
          brought<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9), "SGD"),
          brought<torch::optim::Adagrad>(torch::optim::AdagradOptions().eps(1e-4), "Adagrad"),
          brought<torch::optim::RMSprop>(torch::optim::RMSpropOptions().eps(1e-4), "RMSprop")};
}

TEST(TorchOptimizers, HaveTheSameBitsUnderEveryPlan) {
  for (const TorchOptimizer& optimizer : elementwise())
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      const Job job{Plan::ddp().precision(precision), 3, optimizer, {.clip = 1, .seed = 3}, 6};
      const Outcome ddp = train<Lm>(job, lm_with_dropout(0.1));
      under_every_plan(job, [&](const Job& each) {
        EXPECT_EQ(difference(ddp, train<Lm>(each, lm_with_dropout(0.1))), "") << optimizer.label;
      });
    }
}

// The engine's AdamW is LibTorch's but for the last unit of a root.
TEST(TorchOptimizers, DoWhatTheEnginesDo) {
  Job job{Plan::zero3(), 2, AdamW{.lr = 2e-3, .eps = 1e-4}, {.clip = 1, .schedule = constant_schedule(3)}, 6};
  const Outcome ours = train<Lm>(job);
  job.optimizer = elementwise().front();
  EXPECT_EQ(difference(ours, train<Lm>(job), 1e-6), "");
}

TEST(TorchOptimizers, MayUpdateAGroup) {
  const auto vectors = [](const ParameterInfo& info) { return info.shape.size() == 1; };
  Job job{Plan::ddp(), 2, Lion{.lr = 1e-3}, {.groups = {{.takes = vectors, .optimizer = elementwise()[1]}}}, 4};
  const Outcome ddp = train<Lm>(job);
  under_every_plan(job, [&](const Job& each) { EXPECT_EQ(difference(ddp, train<Lm>(each)), ""); });
}

std::string refusal(const Optimizer& optimizer, const Plan& plan = Plan::zero3(), const Options& options = {}) {
  std::string text;
  run_ranks(1, [&](const World& world) {
    Lm model;
    try {
      Engine engine(model, world, plan, optimizer, options);
    } catch (const ConfigError& error) {
      text = error.what();
    }
  });
  return text;
}

struct Scalars : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    return (layer(numbers(index, {3, 4})) * factor + offset).to(at::kFloat).square().mean();
  }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 1));
  at::Tensor factor = register_parameter("factor", at::ones({}));
  at::Tensor offset = register_parameter("offset", at::ones({1}));
};

// Also those of a parameter without dimensions, whose part has one.
TEST(TorchOptimizers, GoOnFromCheckpointsOfSingleElements) {
  for (const TorchOptimizer& optimizer : elementwise())
    for (const Plan& plan : all_plans())
      for (const int ranks : {1, 2}) {
        const Folder folder;
        const Job job{plan.bf16(), ranks, optimizer, {.seed = 3}, 2};
        const auto stretch = [&](bool loads, int steps) {
          return train_by<Scalars>(job, {}, [&](Scalars& model, Engine& engine, Outcome& run, int) {
            if (loads) engine.load(folder.path());
            for (int step = 0; step < steps; ++step) {
              const StepReport report = train_step(model, engine);
              if (engine.steps() > 2) run.record(report);
            }
            if (engine.steps() == 2) engine.save(folder.path());
          });
        };
        stretch(false, 2);
        EXPECT_EQ(difference(stretch(false, 4), stretch(true, 2)), "") << describe(job);
      }
}

TEST(TorchOptimizers, AreRefusedWhereTheyNeedAClosure) {
  const std::string text = refusal(brought<torch::optim::LBFGS>(torch::optim::LBFGSOptions(), "LBFGS"));
  EXPECT_NE(text.find("LBFGS"), std::string::npos) << text;
  EXPECT_NE(text.find("closure"), std::string::npos) << text;
}

// Steps of a length of its own: by the norm of the whole tensor.
class Normalised : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    for (auto& group : param_groups())
      for (at::Tensor& parameter : group.params()) parameter.mutable_grad().div_(parameter.grad().norm());
    return SGD::step(std::move(closure));
  }
};

TEST(TorchOptimizers, AreRefusedWhereTheyTakeNormsOfTensors) {
  const std::string text = refusal(brought<Normalised>(torch::optim::SGDOptions(0.1), "Normalised"));
  EXPECT_NE(text.find("norms over tensors"), std::string::npos) << text;
}

// Matrices go twice as far.
class Shaped : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    for (auto& group : param_groups())
      for (at::Tensor& parameter : group.params())
        if (parameter.dim() > 1) parameter.mutable_grad().mul_(2);
    return SGD::step(std::move(closure));
  }
};

TEST(TorchOptimizers, AreRefusedWhereShapesMatter) {
  const std::string text = refusal(brought<Shaped>(torch::optim::SGDOptions(0.1), "Shaped"));
  EXPECT_NE(text.find("matrices"), std::string::npos) << text;
}

// Large enough for the arena.
struct Large : torch::nn::Module {
  Large() : layer(register_module("layer", torch::nn::Linear(torch::nn::LinearOptions(256, 512).bias(false)))) {}
  at::Tensor loss(std::int64_t index) { return layer(numbers(index, {2, 256})).square().mean(); }
  torch::nn::Linear layer;
};

// What replaces its state at each step keeps no more than one.
class Replacing : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    last = param_groups()[0].params()[0].grad().clone();
    return SGD::step(std::move(closure));
  }
  at::Tensor last;
};

TEST(TorchOptimizers, WhatTheyReplaceIsNotCounted) {
  use_arena();
  on_ranks<Large>({Plan::zero3(), 1, brought<Replacing>(torch::optim::SGDOptions(0.1), "Replacing")}, {},
                  [](Large& model, Engine& engine, int) {
                    for (int step = 0; step < 4; ++step) train_step(model, engine);
                    EXPECT_EQ(engine.ledger()[Owner::optimizer].bytes, 4 * 256 * 512);
                  });
}

TEST(TorchOptimizers, AreRefusedWithoutMainWeights) {
  const std::string text = refusal(elementwise().front(), Plan::zero3().precision(Precision::bf16_sr));
  EXPECT_NE(text.find("main weights"), std::string::npos) << text;
}

TEST(TorchOptimizers, AreRefusedAGroupsWeightDecay) {
  const std::string text =
      refusal(elementwise().front(), Plan::zero3(), {.groups = {no_decay_on_norms_biases_embeddings()}});
  EXPECT_NE(text.find("weight_decay"), std::string::npos) << text;
}

// Two moments of all weights in fp32, by the arena.
TEST(TorchOptimizers, WhatTheyKeepIsMeasured) {
  use_arena();
  on_ranks<Large>({Plan::zero3(), 2, elementwise().front()}, {}, [](Large& model, Engine& engine, int) {
    train_step(model, engine);
    const std::int64_t moments = 2 * 4 * 256 * 512 / 2;
    EXPECT_GE(engine.ledger()[Owner::optimizer].bytes, moments);
    EXPECT_LE(engine.ledger()[Owner::optimizer].bytes, moments + 4096);
  });
}

}  // namespace zero::test::torch_optimizer_test
