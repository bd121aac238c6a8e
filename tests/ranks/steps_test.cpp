// Forwards, backwards and steps in every order a program may call them, and what interrupts them.
#include <torch/torch.h>

#include <limits>

#include "lm.h"
#include "zero/error.h"

namespace zero::test::steps_test {

using Limits = std::numeric_limits<double>;

// The loop of a test runs under every plan and must give what `expected` gives under the same plan.
template <class Loop>
void expect_as_usual(const Job& job, const Course<Lm>& course, const Loop& loop) {
  under_every_plan(job, [&](const Job& each) {
    EXPECT_EQ(difference(train<Lm>(each, course), train_by<Lm>(each, course, loop)), "");
  });
}

TEST(Forward, TwiceBeforeOneBackward) {
  const Job job{.ranks = 2, .steps = 3};
  const auto shared = std::make_shared<Lm>();
  initialise(*shared, kSeed);
  PlainTrainer plain(*shared, job);
  const auto loss = [](Lm& model, std::int64_t index) { return model.loss(index) - 0.3 * model.loss(index + 100); };
  for (std::int64_t index = 0; index < 6; ++index) {
    plain.backward(loss(*shared, index));
    if (index % 2 == 1) plain.step();
  }
  const Outcome expected = plain.finish();
  under_every_plan(job, [&](const Job& each) {
    EXPECT_EQ(difference(expected,
                         train_by<Lm>(each, {},
                                      [&](Lm& model, Engine& engine, Outcome& run, int) {
                                        for (int step = 0; step < 3; ++step) {
                                          engine.backward(loss(model, engine.micro_batch()));
                                          run.record(engine.step());
                                        }
                                      }),
                         1e-6),
              "");
  });
}

// Three backwards a step with `accumulate` 1 or 2: gradients add up, each weighing 1 / (N accumulate).
void expect_backwards_to_add_up(int accumulate) {
  const Job job{.plan = Plan::ddp().accumulate(accumulate), .ranks = 2, .optimizer = Sgd{.lr = 0.1}};
  const auto shared = std::make_shared<Lm>();
  initialise(*shared, kSeed);
  PlainTrainer plain(*shared, job);
  for (int step = 0; step < 2; ++step) {
    for (std::int64_t index = 0; index < 6; ++index) plain.backward(shared->loss(step * 6 + index));
    plain.step();
  }
  const Outcome expected = plain.finish();
  under_every_plan(job, [&](const Job& each) {
    EXPECT_EQ(difference(expected,
                         train_by<Lm>(each, {},
                                      [&](Lm& model, Engine& engine, Outcome& run, int rank) {
                                        for (int step = 0; step < 2; ++step) {
                                          for (int micro = 0; micro < 3; ++micro)
                                            engine.backward(model.loss(step * 6 + micro * 2 + rank));
                                          run.record(engine.step());
                                        }
                                      }),
                         1e-6),
              "");
  });
}

struct Linear : torch::nn::Module {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(8, 4));
  torch::Tensor loss() { return layer(torch::ones({2, 8})).square().mean(); }
};

// A sum in 16 bits would stop growing.
TEST(Backward, ManyMoreTimesThanPlannedAddsUpIn16BitsToo) {
  constexpr int kTimes = 600;
  for (const Precision precision : {Precision::bf16, Precision::fp16})
    under_every_plan({.plan = Plan::ddp().precision(precision),
                      .ranks = 3,
                      .optimizer = Sgd{.lr = 0},
                      .options = {.loss_scale = LossScale::fixed(1)}},
                     [](const Job& job) {
                       on_ranks<Linear>(job, {}, [](Linear& model, Engine& engine, int) {
                         engine.backward(model.loss());
                         const double once = engine.step().grad_norm;
                         for (int i = 0; i < kTimes; ++i) engine.backward(model.loss());
                         EXPECT_NEAR(engine.step().grad_norm / once, kTimes, 0.01 * kTimes);
                       });
                     });
}

TEST(Backward, SeveralTimesBeforeOneStepAddsUp) {
  expect_backwards_to_add_up(1);
}
TEST(Backward, MoreOftenThanPlannedAddsUp) {
  expect_backwards_to_add_up(2);
}

TEST(Backward, TakesALossOfOneElementOnly) {
  under_every_plan({}, [](const Job& job) {
    on_ranks<Lm>(job, {}, [](Lm& model, Engine& engine, int) {
      EXPECT_THROW(engine.backward(at::Tensor()), ConfigError);
      EXPECT_THROW(engine.backward(at::zeros({})), ConfigError);
      EXPECT_THROW(engine.backward(model.loss(0).expand({3})), ConfigError);
      const torch::NoGradGuard no_grad;
      EXPECT_THROW(engine.backward(model.loss(0)), ConfigError);
    });
  });
}

TEST(Backward, RefusedLossesAndOneOfShapeOneLeaveTheStepAsItIs) {
  expect_as_usual({}, {}, [](Lm& model, Engine& engine, Outcome& run, int) {
    for (int step = 0; step < 3; ++step) {
      EXPECT_THROW(engine.backward(at::zeros({2})), ConfigError);
      engine.backward(model.loss(engine.micro_batch()).reshape({1}));
      run.record(engine.step());
    }
  });
}

TEST(Backward, OutsideTheEngineThrowsAndNamesAParameter) {
  expect_as_usual({}, {}, [](Lm& model, Engine& engine, Outcome& run, int) {
    try {
      torch::autograd::backward({model.loss(0)});
      ADD_FAILURE() << "a backward past the engine went unnoticed";
    } catch (const StateError& error) {
      EXPECT_NE(std::string(error.what()).find("parameter '"), std::string::npos) << error.what();
    }
    for (int step = 0; step < 3; ++step) run.record(train_step(model, engine));
  });
}

TEST(Step, BeforeAllMicroBatchesDoesNothing) {
  expect_as_usual({.plan = Plan::ddp().accumulate(2)}, {}, [](Lm& model, Engine& engine, Outcome& run, int) {
    for (int step = 0; step < 3; ++step) {
      EXPECT_FALSE(engine.step().applied);
      engine.backward(model.loss(engine.micro_batch()));
      const StepReport early = engine.step();
      EXPECT_FALSE(early.applied || early.skipped);
      EXPECT_EQ(early.step, step);
      engine.backward(model.loss(engine.micro_batch()));
      run.record(engine.step());
    }
    EXPECT_EQ(engine.steps(), 3);
  });
}

TEST(Step, ReportsLossNormAndLearningRate) {
  Options options{.clip = 1e-3, .schedule = [](std::int64_t step) { return 1.0 / static_cast<double>(1 + step); }};
  under_every_plan({.options = options}, [](const Job& job) {
    on_ranks<Lm>(job, {}, [](Lm& model, Engine& engine, int) {
      const double before = (model.loss(0) + model.loss(1)).item<double>() / 2;
      const StepReport first = train_step(model, engine), second = train_step(model, engine);
      EXPECT_TRUE(first.applied);
      EXPECT_NEAR(first.loss, before, 1e-6);
      EXPECT_GT(first.grad_norm, 1e-3);
      EXPECT_DOUBLE_EQ(first.lr, 2e-3);
      EXPECT_DOUBLE_EQ(second.lr, 1e-3);
      EXPECT_EQ(second.step, 2);
    });
  });
}

// One rank's gradient overflows at its second micro-batch; nobody updates, and training goes on.
void expect_skipped(double poison) {
  under_every_plan({.ranks = 3}, [poison](const Job& job) {
    on_ranks<Lm>(job, {}, [poison](Lm& model, Engine& engine, int rank) {
      train_step(model, engine);
      const auto before = parameters_of(model, engine);
      const double factor = rank == 1 ? poison : 1.0;
      engine.backward(model.loss(engine.micro_batch()) * factor);
      const StepReport report = engine.step();
      EXPECT_TRUE(report.skipped);
      EXPECT_FALSE(report.applied);
      EXPECT_EQ(report.step, 1);
      EXPECT_EQ(engine.skipped_steps(), 1);
      for (const auto& [name, value] : parameters_of(model, engine)) EXPECT_TRUE(value.equal(before.at(name))) << name;
      EXPECT_TRUE(train_step(model, engine).applied);
      EXPECT_EQ(engine.steps(), 2);
    });
  });
}

TEST(Step, IsSkippedOnAllRanksWhenOneOverflows) {
  expect_skipped(Limits::infinity());
}
TEST(Step, IsSkippedOnAllRanksWhenOneIsNotANumber) {
  expect_skipped(Limits::quiet_NaN());
}

TEST(Step, AfterASkippedOneIsAsIfItHadNotBeen) {
  under_every_plan({.plan = Plan::ddp().bf16()}, [](const Job& job) {
    const Outcome expected = train<Lm>(job);
    const Outcome run = train_by<Lm>(job, {}, [](Lm& model, Engine& engine, Outcome& outcome, int rank) {
      for (std::int64_t step = 0; step < 3; ++step) {
        engine.backward(model.loss(0) * Limits::infinity());
        EXPECT_TRUE(engine.step().skipped);
        engine.backward(model.loss(step * 2 + rank));
        outcome.record(engine.step());
      }
    });
    EXPECT_EQ(difference(expected, run), "");
  });
}

void evaluate(Lm& model) {
  model.eval();
  {
    const torch::NoGradGuard no_grad;
    const double loss = model.loss(1000).item<double>();
    EXPECT_EQ(model.loss(1000).item<double>(), loss);
  }
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(std::isfinite(model.loss(1000).item<double>()));
  }
  model.train();
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(std::isfinite(model.loss(1000).item<double>()));  // with dropout
}

TEST(Evaluation, BetweenStepsChangesNothing) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    expect_as_usual({.plan = Plan::ddp().precision(precision)}, lm_with_dropout(0.3),
                    [](Lm& model, Engine& engine, Outcome& run, int) {
                      for (int step = 0; step < 3; ++step) {
                        evaluate(model);
                        run.record(train_step(model, engine));
                      }
                      evaluate(model);
                    });
}

TEST(Evaluation, BetweenMicroBatchesAndBetweenForwardAndBackwardChangesNothing) {
  expect_as_usual({.plan = Plan::ddp().accumulate(2)}, lm_with_dropout(0.3),
                  [](Lm& model, Engine& engine, Outcome& run, int) {
                    for (int step = 0; step < 3; ++step) {
                      for (int micro = 0; micro < 2; ++micro) {
                        const at::Tensor loss = model.loss(engine.micro_batch());
                        evaluate(model);
                        engine.backward(loss);
                        evaluate(model);
                      }
                      run.record(engine.step());
                    }
                  });
}

TEST(Evaluation, OnOneRankOnlyDoesNotHang) {
  expect_as_usual({.ranks = 3}, lm_with_dropout(0.3), [](Lm& model, Engine& engine, Outcome& run, int rank) {
    for (int step = 0; step < 3; ++step) {
      if (rank == 1) evaluate(model);
      run.record(train_step(model, engine));
    }
  });
}

TEST(Evaluation, SeesTheValuesOfTheLastStep) {
  under_every_plan({}, [](const Job& job) {
    on_ranks<Lm>(job, {}, [](Lm& model, Engine& engine, int) {
      const auto loss = [&] {
        const torch::NoGradGuard no_grad;
        return model.loss(0).item<double>();
      };
      const double before = loss();
      train_step(model, engine);
      EXPECT_NE(before, loss());
    });
  });
}

// Half a forward, then an exception.
void fail_in_forward(Lm& model) {
  EXPECT_THROW(
      {
        model.blocks->forward(model.embed(tokens(5, {2, 3}, Lm::kVocabulary)));
        throw std::runtime_error("in forward");
      },
      std::runtime_error);
}

TEST(Exceptions, InForwardThenANormalStep) {
  for (const int only : {-1, 1})  // on every rank, on one
    expect_as_usual({.ranks = 3}, {}, [only](Lm& model, Engine& engine, Outcome& run, int rank) {
      for (int step = 0; step < 3; ++step) {
        if (only < 0 || only == rank) fail_in_forward(model);
        run.record(train_step(model, engine));
      }
    });
}

TEST(Exceptions, InAnOperatorThenANormalStep) {
  expect_as_usual({}, {}, [](Lm& model, Engine& engine, Outcome& run, int) {
    for (int step = 0; step < 3; ++step) {
      EXPECT_THROW(model.fixed(at::ones({2, 4})), c10::Error);
      run.record(train_step(model, engine));
    }
  });
}

void fail_in_backward(Lm& model, Engine& engine) {
  at::Tensor x = model.fixed(model.embed(tokens(5, {3, 6}, Lm::kVocabulary)));
  x = model.blocks[0]->as<Block>()->forward(x);
  x.register_hook([](const at::Tensor&) -> void { throw std::runtime_error("in backward"); });
  EXPECT_THROW(engine.backward(model.norm(model.blocks[1]->as<Block>()->forward(x)).sum()), std::runtime_error);
}

TEST(Exceptions, InBackwardThenANormalStep) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    expect_as_usual({.plan = Plan::ddp().precision(precision), .ranks = 3}, lm_with_dropout(0.3),
                    [](Lm& model, Engine& engine, Outcome& run, int) {
                      for (int step = 0; step < 3; ++step) {
                        fail_in_backward(model, engine);
                        run.record(train_step(model, engine));
                      }
                    });
}

TEST(Exceptions, InBackwardDropTheGradientsOfTheStep) {
  expect_as_usual({.plan = Plan::ddp().accumulate(2)}, lm_with_dropout(0.3),
                  [](Lm& model, Engine& engine, Outcome& run, int) {
                    for (int step = 0; step < 3; ++step) {
                      engine.backward(model.loss(77));
                      fail_in_backward(model, engine);
                      run.record(train_step(model, engine));
                    }
                  });
}

TEST(Exceptions, ARankThatEndsGivesThePeersAnError) {
  for (const Plan& plan : all_plans()) {
    const Job job{.plan = plan, .ranks = 3};
    EXPECT_THROW(on_ranks<Lm>(job, {},
                              [](Lm& model, Engine& engine, int rank) {
                                train_step(model, engine);
                                if (rank == 1) return;
                                EXPECT_THROW(train_step(model, engine), CommError);
                                throw std::runtime_error("as expected");
                              }),
                 RankError);
  }
}

}  // namespace zero::test::steps_test
