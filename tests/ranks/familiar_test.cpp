// Loops of LibTorch's own: loss.backward(), an optimizer of LibTorch's kind, gradients that the program empties.
#include <torch/torch.h>

#include "covering.h"
#include "familiar.h"
#include "zero/error.h"

namespace zero::test::familiar_test {

// What a trainer is written for: whatever optimizes.
void train_loop(Net& net, torch::optim::Optimizer& optimizer, Engine& engine, Outcome& run, int steps) {
  for (int step = 0; step < steps; ++step) {
    for (int micro = 0; micro < engine.plan().accumulate(); ++micro) {
      optimizer.zero_grad();
      net.loss(engine.micro_batch()).backward();
      optimizer.step();
    }
    run.record(engine.last_step());
  }
}

Outcome train_familiar(const Job& job) {
  return train_by<Net>(job, {}, [&](Net& net, Engine& engine, Outcome& run, int) {
    train_loop(net, engine.optimizer(), engine, run, job.steps);
  });
}

// Ranks, micro-batches, precision.
class Familiar : public testing::TestWithParam<Shape> {};

TEST_P(Familiar, LoopsHaveTheBitsOfTheEnginesOwn) {
  const auto& [ranks, accumulate, precision] = GetParam();
  Job job = kJob;
  job.ranks = ranks;
  job.plan = Plan::ddp().accumulate(accumulate).precision(precision);
  if (precision == Precision::fp16) job.options.loss_scale = LossScale::fixed(1);
  under_every_plan(job, [](const Job& each) { EXPECT_EQ(difference(train<Net>(each), train_familiar(each)), ""); });
}

std::string title_of(const testing::TestParamInfo<Shape>& tested) {
  const auto& [ranks, accumulate, precision] = tested.param;
  return in_title(ranks, accumulate, precision);
}

INSTANTIATE_TEST_SUITE_P(All, Familiar,
                         testing::ValuesIn(covering(std::vector{1, 2, 4}, std::vector{1, 2, 3},
                                                    std::vector{Precision::fp32, Precision::bf16, Precision::fp16})),
                         title_of);

// A plain optimizer's program, to the bit on one rank, and what the same step gives on two.
TEST(FamiliarLoops, AreThoseOfPlainLibTorch) {
  const auto plain = [](const Job& job) {
    Net net;
    initialise(net, kSeed);
    net.eval();
    PlainTrainer trainer(net, job);
    for (int step = 0; step < job.steps; ++step) {
      for (int rank = 0; rank < job.ranks; ++rank) trainer.backward(net.loss(step * job.ranks + rank));
      trainer.step();
    }
    return trainer.finish();
  };
  for (const int ranks : {1, 2}) {
    Job job = kJob;
    job.ranks = ranks;
    const Outcome run = train_by<Net>(job, {}, [&](Net& net, Engine& engine, Outcome& outcome, int) {
      net.eval();
      train_loop(net, engine.optimizer(), engine, outcome, job.steps);
    });
    EXPECT_EQ(difference(plain(job), run, 1e-6), "");
  }
}

// Under fp16 the loss is scaled by the engine, and else refused.
TEST(FamiliarLoops, ScaleTheLoss) {
  Job job = kJob;
  job.plan = Plan::zero2().precision(Precision::fp16);
  const Outcome expected = train<Net>(job);
  const Outcome run = train_by<Net>(job, {}, [&](Net& net, Engine& engine, Outcome& outcome, int) {
    for (int step = 0; step < job.steps; ++step) {
      engine.scale(net.loss(engine.micro_batch())).backward();
      outcome.record(engine.step());
    }
  });
  EXPECT_EQ(difference(expected, run), "");
  const std::string fault =
      thrown_by([&] { on_ranks<Net>(job, {}, [](Net& net, Engine&, int) { net.loss(0).backward(); }); });
  EXPECT_TRUE(says(fault, {"loss scale", "engine.scale(loss).backward()"}));
}

// A loss with a gradient of its own is that loss times it.
TEST(FamiliarLoops, MayWeighTheLoss) {
  for (const Plan& plan : all_plans()) {
    Job job = kJob;
    job.plan = plan;
    const auto by = [&](const auto& backward) {
      return train_by<Net>(job, {}, [&](Net& net, Engine& engine, Outcome& outcome, int) {
        for (int step = 0; step < job.steps; ++step) {
          backward(engine, net.loss(engine.micro_batch()));
          outcome.record(engine.step());
        }
      });
    };
    const Outcome expected = by([](Engine& engine, const at::Tensor& loss) { engine.backward(loss * 0.25); });
    const Outcome given = by([](Engine&, const at::Tensor& loss) { loss.backward(at::full_like(loss, 0.25)); });
    EXPECT_EQ(difference(expected, given), "") << plan.label();
  }
}

// Of several losses of one graph, in turn, and the graph kept.
TEST(FamiliarLoops, TakeSeveralLossesOfOneGraph) {
  const auto by = [](const Job& job, const auto& backward) {
    return train_by<Net>(job, {}, [&](Net& net, Engine& engine, Outcome& outcome, int) {
      for (int step = 0; step < job.steps; ++step) {
        const at::Tensor x = torch::tanh(net.body(numbers(engine.micro_batch(), {4, 7})));
        backward(net.left(x).abs().mean(), net.right(net.left(x)).square().mean());
        outcome.record(engine.step());
      }
    });
  };
  for (const int ranks : {1, 3}) {
    Job job = kJob;
    job.ranks = ranks;
    const auto apart = [](const at::Tensor& a, const at::Tensor& b) {
      a.backward({}, /*retain_graph=*/true);
      b.backward();
    };
    const Outcome expected = by(job, apart);
    EXPECT_EQ(difference(by(job, [](const at::Tensor& a, const at::Tensor& b) { (a + b).backward(); }), expected, 1e-6),
              "");
    under_every_plan(job, [&](const Job& each) { EXPECT_EQ(difference(expected, by(each, apart)), ""); });
  }
}

// zero_grad() of the module or the optimizer, setting to none or filling, between backward and step: what was gathered
// is gone, and what comes after counts alone.
TEST(FamiliarLoops, DropWhatTheyEmpty) {
  const Job base = kJob;
  const Outcome expected = train<Net>(base);
  using Empty = std::function<void(Net&, Engine&)>;
  const std::vector<Empty> ways{[](Net& net, Engine&) { net.zero_grad(); },
                                [](Net& net, Engine&) { net.zero_grad(false); },
                                [](Net&, Engine& engine) { engine.optimizer().zero_grad(); },
                                [](Net&, Engine& engine) { engine.optimizer().zero_grad(false); }};
  under_every_plan(base, [&](const Job& job) {
    for (std::size_t way = 0; way < ways.size(); ++way) {
      const Outcome run = train_by<Net>(job, {}, [&](Net& net, Engine& engine, Outcome& outcome, int) {
        for (int step = 0; step < job.steps; ++step) {
          net.eval();
          net.loss(1000 + step).backward();
          EXPECT_TRUE(net.body->weight.grad().defined());
          ways[way](net, engine);
          net.train();
          net.loss(engine.micro_batch()).backward();
          outcome.record(engine.step());
          EXPECT_FALSE(net.body->weight.grad().defined());
        }
      });
      EXPECT_EQ(run.losses, expected.losses) << "way " << way;
    }
  });
}

// A step after which nothing has come.
TEST(FamiliarLoops, StepWithoutGradientsDoesNothing) {
  on_ranks<Net>(kJob, {}, [](Net& net, Engine& engine, int) {
    net.loss(0).backward();
    net.zero_grad();
    engine.optimizer().step();
    EXPECT_FALSE(engine.last_step().applied);
    EXPECT_EQ(engine.steps(), 0);
  });
}

// Some parameters' gradients alone: they count as not there.
TEST(FamiliarLoops, EmptySomeGradients) {
  const auto by = [](const Job& job, const auto& backward) {
    return train_by<Net>(job, {}, [&](Net& net, Engine& engine, Outcome& outcome, int) {
      for (int step = 0; step < job.steps; ++step) {
        backward(net, net.loss(engine.micro_batch()));
        outcome.record(engine.step());
      }
    });
  };
  Job base = kJob;
  base.optimizer = AdamW{.lr = 0.01, .eps = 1e-4};
  for (const int ranks : {1, 2}) {
    base.ranks = ranks;
    under_every_plan(base, [&](const Job& job) {
      const Outcome expected = by(job, [](Net& net, const at::Tensor& loss) {
        std::vector<at::Tensor> wanted;
        for (const at::Tensor& each : net.parameters())
          if (!each.is_same(net.left->weight)) wanted.push_back(each);
        loss.backward({}, c10::nullopt, false, wanted);
      });
      const Outcome run = by(job, [](Net& net, const at::Tensor& loss) {
        loss.backward();
        net.left->weight.mutable_grad() = at::Tensor();
      });
      EXPECT_EQ(difference(expected, run), "");
    });
  }
}

TEST(FamiliarLoops, AreToldWhoHasTheGradients) {
  for (const Plan& plan : all_plans()) {
    Job job = kJob;
    job.plan = plan;
    on_ranks<Net>(job, {}, [](Net& net, Engine& engine, int) {
      net.loss(0).backward();
      torch::optim::SGD other(net.parameters(), 0.1);
      for (const std::string& fault :
           {thrown_by([&] { torch::nn::utils::clip_grad_norm_(net.parameters(), 1.0); }),
            thrown_by([&] { torch::nn::utils::clip_grad_value_(net.parameters(), 1.0); }),
            thrown_by([&] { other.step(); }), thrown_by([&] { net.body->weight.grad().add(1); })})
        EXPECT_TRUE(says(fault, {"rank ", "'body.weight'", "Options::clip", "engine.step()"}));
      EXPECT_EQ(net.body->weight.grad().sizes(), net.body->weight.sizes());
      EXPECT_TRUE(engine.step().applied);
      net.loss(1).backward();
      net.left->weight.mutable_grad() = at::ones_like(net.left->weight);
      EXPECT_TRUE(says(thrown_by([&] { engine.step(); }), {"'left.weight'", "of its own"}));
    });
  }
}

// Which no backward has brought: they would be left aside.
TEST(FamiliarLoops, AreToldOfGradientsOfTheirOwn) {
  for (const Plan& plan : all_plans()) {
    Job job = kJob;
    job.plan = plan;
    on_ranks<Net>(job, {}, [](Net& net, Engine& engine, int) {
      net.left->weight.mutable_grad() = at::ones_like(net.left->weight);
      EXPECT_TRUE(says(thrown_by([&] { engine.step(); }), {"'left.weight'", "of its own"}));
      EXPECT_TRUE(says(thrown_by([&] { net.loss(0).backward(); }), {"'left.weight'", "of its own"}));
      net.zero_grad();
      net.loss(0).backward();
      EXPECT_TRUE(engine.step().applied);
    });
  }
}

// Micro-batches of which step() was called are not dropped by halves.
TEST(FamiliarLoops, DoNotEmptyHalfAStep) {
  Job job = kJob;
  job.plan = Plan::zero1().accumulate(2);
  on_ranks<Net>(job, {}, [](Net& net, Engine& engine, int) {
    net.loss(0).backward();
    EXPECT_FALSE(engine.step().applied);
    net.zero_grad();
    net.loss(1).backward();
    net.zero_grad();
    EXPECT_TRUE(says(thrown_by([&] { engine.step(); }), {"zero_grad()", "discard()"}));
    engine.discard();
    for (int micro = 0; micro < 2; ++micro) net.loss(micro).backward();
    EXPECT_TRUE(engine.step().applied);
  });
}

// Schedules of LibTorch's set the rate, or the program does.
TEST(FamiliarLoops, FollowSchedules) {
  Job job = kJob;
  job.optimizer = AdamW{.lr = 0.01, .eps = 1e-4};
  for (const bool torchs : {true, false}) {
    const int later = torchs ? 3 : 2;  // StepLR leaves its first call out
    job.options.schedule = [later](std::int64_t step) { return step < later ? 1.0 : 0.5; };
    const Outcome expected = train<Net>(job);
    Job scheduled = job;
    scheduled.options.schedule = {};
    under_every_plan(scheduled, [&](const Job& each) {
      const Outcome run = train_by<Net>(each, {}, [&](Net& net, Engine& engine, Outcome& outcome, int) {
        torch::optim::StepLR schedule(engine.optimizer(), 2, 0.5);
        for (int step = 0; step < job.steps; ++step) {
          net.loss(engine.micro_batch()).backward();
          if (!torchs && step == later) engine.set_lr(0.005);
          outcome.record(engine.step());
          EXPECT_EQ(engine.last_step().lr, step < later ? 0.01 : 0.005);
          if (torchs) schedule.step();
        }
      });
      EXPECT_EQ(difference(expected, run), "");
    });
  }
}

TEST(FamiliarLoops, HaveGroups) {
  Job job = kJob;
  job.options.groups = {{.takes = [](const ParameterInfo& info) { return info.shape.size() == 1; }, .lr_scale = 0.5}};
  on_ranks<Net>(job, {}, [](Net& net, Engine& engine, int) {
    torch::optim::Optimizer& optimizer = engine.optimizer();
    ASSERT_EQ(optimizer.param_groups().size(), 2);
    EXPECT_EQ(optimizer.param_groups()[0].params().size(), 3);
    EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1);
    EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 0.05);
    EXPECT_EQ(&optimizer, &engine.optimizer());
    engine.set_lr(0.2);
    EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 0.1);
    const at::Tensor loss = optimizer.step([&] {
      const at::Tensor each = net.loss(0);
      each.backward();
      return each;
    });
    EXPECT_TRUE(engine.last_step().applied);
    EXPECT_EQ(engine.last_step().lr, 0.2);
    torch::serialize::OutputArchive archive;
    EXPECT_TRUE(says(thrown_by([&] { optimizer.save(archive); }), {"engine.save(folder)"}));
    EXPECT_THROW(engine.set_lr(-1), ConfigError);
  });
}

TEST(FamiliarLoops, AreToldOfGroupsAndRatesThatCannotBe) {
  const auto refusal = [](const std::function<void(torch::optim::Optimizer&, Net&)>& set) {
    std::string said;
    on_ranks<Net>(kJob, {}, [&](Net& net, Engine& engine, int rank) {
      net.loss(engine.micro_batch()).backward();
      set(engine.optimizer(), net);
      const std::string each = thrown_by([&] { engine.step(); });
      EXPECT_TRUE(says(each, {"rank " + std::to_string(rank)}));
      if (rank == 0) said = each;
    });
    return said;
  };
  EXPECT_TRUE(says(refusal([](auto& optimizer, Net&) {
                     optimizer.add_param_group(torch::optim::OptimizerParamGroup({torch::zeros({2, 2})}));
                   }),
                   {"a group was added to an engine's optimizer"}));
  EXPECT_TRUE(
      says(refusal([](auto& optimizer, Net& net) { optimizer.param_groups()[0].params().push_back(net.body->weight); }),
           {"those that the engine was built with"}));
  for (const double lr : {std::nan(""), -1.0, HUGE_VAL})
    EXPECT_TRUE(says(refusal([lr](auto& optimizer, Net&) { optimizer.param_groups()[0].options().set_lr(lr); }),
                     {"group 0 of the optimizer has the learning rate"}));
}

TEST(FamiliarLoops, AreToldOfSchedulesThatGiveNoNumber) {
  Job job = kJob;
  job.options.schedule = [](std::int64_t step) { return step == 1 ? std::nan("") : 1.0; };
  on_ranks<Net>(job, {}, [](Net& net, Engine& engine, int) {
    const auto step = [&] {
      net.loss(engine.micro_batch()).backward();
      return engine.step().applied;
    };
    EXPECT_TRUE(step());
    EXPECT_TRUE(says(thrown_by(step), {"Options::schedule", "step 1"}));
  });
}

// Nothing is updated where ranks would update by different rates, and all of them are told.
TEST(FamiliarLoops, HaveTheSameRateOnEveryRank) {
  for (const Plan& plan : all_plans()) {
    Job job = kJob;
    job.plan = plan;
    job.ranks = 3;
    const auto by = [&](bool differs) {
      return train_by<Net>(job, {}, [&](Net& net, Engine& engine, Outcome& outcome, int rank) {
        for (int step = 0; step < 2; ++step) {
          net.loss(engine.micro_batch()).backward();
          engine.set_lr(differs && rank == 1 ? 0.3 : 0.2);
          if (differs) {
            EXPECT_TRUE(says(thrown_by([&] { engine.optimizer().step(); }),
                             {"rank " + std::to_string(rank),
                              "learning rates, or other values of the optimizer's groups, differ between ranks 0 and 1",
                              rank == 1 ? "0.3" : "0.2", "Nothing was updated", "call step() again"}));
            engine.set_lr(0.2);
          }
          engine.optimizer().step();
          outcome.record(engine.last_step());
        }
        outcome.parameters = parameters_of(net, engine);
      });
    };
    EXPECT_EQ(difference(by(false), by(true)), "") << plan.label();
  }
}

// A backward that fails drops its step, and the next one is whole.
TEST(FamiliarLoops, GoOnAfterABackwardThatThrew) {
  struct Failing : torch::autograd::Function<Failing> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
      throw std::runtime_error("on purpose");
    }
  };
  const Outcome expected = train<Net>(kJob);
  under_every_plan(kJob, [&](const Job& job) {
    const Outcome run = train_by<Net>(job, {}, [&](Net& net, Engine& engine, Outcome& outcome, int) {
      for (int step = 0; step < job.steps; ++step) {
        const at::Tensor x = Failing::apply(net.body(numbers(step, {4, 7})));
        EXPECT_TRUE(says(thrown_by([&] { net.right(net.left(x)).mean().backward(); }), {"on purpose"}));
        net.loss(engine.micro_batch()).backward();
        outcome.record(engine.step());
      }
    });
    EXPECT_EQ(difference(expected, run), "");
  });
}

}  // namespace zero::test::familiar_test
