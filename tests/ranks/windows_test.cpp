// The edges of a micro-batch's window: evaluation, recomputation, scopes within scopes, all in bf16.
#include "harness.h"
#include "lm.h"

namespace zero::test::windows_test {

// Fed with fp32, so that it runs in bf16 only where autocast is on.
struct Regression : torch::nn::Module {
  Regression() {
    register_module("layers", layers);
    register_module("drop", drop);
  }
  at::Tensor forward(const at::Tensor& x) {
    return layers[1]->as<torch::nn::Linear>()->forward(
        drop->forward(torch::relu(layers[0]->as<torch::nn::Linear>()->forward(x))));
  }
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = numbers(index, {6, 19});
    return (forward(x).to(at::kFloat) - x.slice(1, 0, 3)).square().mean();
  }

  torch::nn::ModuleList layers{torch::nn::Linear(19, 70), torch::nn::Linear(70, 3)};
  torch::nn::Dropout drop{0.3};
};

std::vector<Job> bf16_jobs() {
  std::vector<Job> jobs;
  for (const Plan& plan : all_plans()) jobs.push_back({.plan = plan.bf16()});
  jobs.push_back({.plan = Plan::zero3().bf16().resident_budget(1)});
  return jobs;
}

TEST(Windows, AnEvaluationInBf16IsTheSameUnderEveryPlan) {
  std::vector<double> losses;
  for (const Job& job : bf16_jobs()) {
    double evaluated = 0;
    on_ranks<Regression>(job, {}, [&](Regression& model, Engine& engine, int rank) {
      train_step(model, engine);
      const at::NoGradGuard no_grad;
      model.eval();
      const double loss = model.loss(1000).item<double>();
      EXPECT_EQ(model.forward(numbers(1, {2, 19})).scalar_type(), at::kBFloat16);
      if (rank == 0) evaluated = loss;
    });
    losses.push_back(evaluated);
  }
  for (const double loss : losses) EXPECT_EQ(loss, losses.front());
}

TEST(Windows, EndWhereGradientsAreEnabledAgain) {
  on_ranks<Regression>({.plan = Plan::zero3().bf16()}, {}, [](Regression& model, Engine&, int) {
    {
      const at::NoGradGuard no_grad;
      model.forward(numbers(1, {2, 19}));
    }
    const at::Tensor x = numbers(2, {4, 4});
    EXPECT_EQ(torch::mm(x, x).scalar_type(), at::kFloat);
  });
}

TEST(Windows, ADiscardedForwardLeavesTheNextOneAsItWouldHaveBeen) {
  const auto outcome = [](bool fails) {
    return train_by<Regression>({.plan = Plan::zero3()}, {}, [&](Regression& model, Engine& engine, Outcome& run, int) {
      for (int step = 0; step < 3; ++step) {
        if (fails && step == 1) {
          model.loss(77);
          engine.discard();
        }
        run.record(train_step(model, engine));
      }
    });
  };
  EXPECT_EQ(difference(outcome(false), outcome(true)), "");
}

TEST(Windows, WhatIsCopiedFromFp32InsideAGatherInBf16IsKept) {
  for (const Job& job : bf16_jobs()) {
    on_ranks<Regression>(job, {}, [](Regression& model, Engine& engine, int) {
      const at::Tensor weight = model.layers[1]->as<torch::nn::Linear>()->weight;
      const at::Tensor values = numbers(5, weight.sizes());
      {
        const at::NoGradGuard no_grad;
        const auto scope = gather({weight});
        at::Tensor(weight).copy_(values);
      }
      EXPECT_TRUE(engine.main_parameter(weight).equal(values.to(at::kBFloat16).to(at::kFloat)));
    });
  }
}

TEST(Windows, AnInnerScopeLeftByAnExceptionLeavesTheOuterOnesWrites) {
  for (const Job& job : bf16_jobs()) {
    on_ranks<Regression>(job, {}, [](Regression& model, Engine& engine, int) {
      const at::NoGradGuard no_grad;
      const at::Tensor weight = model.layers[0]->as<torch::nn::Linear>()->weight;
      {
        const auto outer = gather({weight});
        at::Tensor(weight).fill_(2);
        try {
          const auto inner = gather({weight});
          at::Tensor(weight).fill_(3);
          throw std::runtime_error("inside");
        } catch (const std::runtime_error&) {
        }
        EXPECT_TRUE(weight.eq(2).all().item<bool>());
      }
      EXPECT_TRUE(engine.main_parameter(weight).eq(2).all().item<bool>());
    });
  }
}

using Layer = std::function<at::Tensor(const at::Tensor&)>;

// Keeps its input alone, and runs the layer again in backward.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Layer* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer);
    return (*layer)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto& layer = *reinterpret_cast<const Layer*>(context->saved_data["layer"].toInt());
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode recorded(true);
    torch::autograd::backward({layer(x)}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

// Seeds itself, before parameters are used: both forwards draw the micro-batch's numbers.
TEST(Windows, ActivationsAreRecomputed) {
  for (const Plan& plan : all_plans())
    for (const double dropout : {0.0, 0.5}) {
      const auto gradient = [&](bool again) {
        at::Tensor of_first;
        on_ranks<Regression>({.plan = plan, .ranks = 1}, {}, [&](Regression& model, Engine& engine, int) {
          model.drop->options.p(dropout);
          const Layer layer = [&](const at::Tensor& x) {
            torch::manual_seed(5);
            return model.forward(x);
          };
          const at::Tensor x = numbers(0, {6, 19}).requires_grad_();
          (again ? Recomputed::apply(x, &layer) : layer(x)).square().mean().backward();
          of_first = engine.gradient(model.layers[0]->as<torch::nn::Linear>()->weight);
        });
        return of_first;
      };
      EXPECT_TRUE(at::equal(gradient(true), gradient(false)));
    }
}

TEST(Windows, AGatherMayOutliveItsEngine) {
  run_ranks(2, [](const World& world) {
    Regression model;
    std::optional<Engine> engine(std::in_place, model, world, Plan::zero1(), AdamW{});
    const auto scope = gather(model.parameters());
    engine.reset();
  });
}

TEST(Windows, ThereIsNoGatherFromARankThatDoesNotExist) {
  on_ranks<Regression>({.plan = Plan::zero3()}, {}, [](Regression& model, Engine& engine, int) {
    EXPECT_THROW(gather(model.parameters(), 2), ConfigError);
    EXPECT_TRUE(train_step(model, engine).applied);
  });
}

TEST(Windows, ToFreezeAParameterIsNoExchange) {
  on_ranks<Regression>({.plan = Plan::zero3()}, {}, [](Regression& model, Engine& engine, int) {
    train_step(model, engine);
    engine.reset_traffic();
    for (at::Tensor& parameter : model.layers[0]->parameters()) parameter.requires_grad_(false);
    EXPECT_EQ(engine.traffic().bytes(), 0);
  });
}

}  // namespace zero::test::windows_test
