// What shard groups keep of gathered parameters until the update.
#include <torch/torch.h>

#include <atomic>
#include <chrono>

#include "folder.h"
#include "lm.h"
#include "memory/torch/arena_allocator.h"

namespace zero::test::kept_copies_test {

// Two hosts of two ranks.
Job on_hosts(const Plan& plan) {
  return {.plan = plan, .ranks = 4, .shard = 2, .ranks_per_host = 2};
}

// A frozen base with an adapter of one row beside each layer.
struct Adapted : torch::nn::Module {
  static constexpr std::int64_t kWidth = 1024, kLayers = 3;

  Adapted() {
    for (int i = 0; i < kLayers; ++i) {
      base->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
      adapters->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, 1).bias(false)));
    }
    register_module("base", base);
    register_module("adapters", adapters);
    for (at::Tensor& parameter : base->parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor loss(std::int64_t index) {
    at::Tensor x = numbers(index, {2, kWidth});
    for (std::size_t i = 0; i < kLayers; ++i)
      x = torch::tanh(base[i]->as<torch::nn::Linear>()->forward(x)) + adapters[i]->as<torch::nn::Linear>()->forward(x);
    return x.square().mean();
  }

  torch::nn::ModuleList base, adapters;
};

class KeptCopies : public testing::TestWithParam<KeptCopy> {
 protected:
  static Plan kept(const Plan& plan = Plan::zero3()) { return plan.keep_gathered(GetParam()); }
};

// Announcements and the vote cross, and the adapters.
TEST_P(KeptCopies, OfWhatIsFrozenStayForGood) {
  const auto across = [](const Plan& plan) {
    std::int64_t bytes = 0;
    on_ranks<Adapted>(on_hosts(plan), {}, [&](Adapted& model, Engine& engine, int rank) {
      for (int step = 0; step < 2; ++step) {
        engine.reset_traffic();
        train_step(model, engine);
      }
      if (rank == 0) bytes = engine.traffic().across_hosts();
      EXPECT_EQ(engine.traffic().across_hosts(), engine.estimate().wire.across_hosts());
      EXPECT_EQ(engine.traffic().within_host(), engine.estimate().wire.within_host());
    });
    return bytes;
  };
  EXPECT_LT(across(kept()), across(Plan::zero3()) / 100);
}

// What is evaluated behind a step comes from what the first evaluation brought.
TEST_P(KeptCopies, AreThereForAllEvaluationsBehindAStep) {
  on_ranks<Lm>(on_hosts(kept()), {}, [&](Lm& model, Engine& engine, int) {
    train_step(model, engine);
    const auto across = [&] {
      engine.reset_traffic();
      const torch::NoGradGuard no_grad;
      static_cast<void>(model.loss(5).item<double>());
      return engine.traffic().across_hosts();
    };
    const std::int64_t first = across(), second = across();
    EXPECT_LT(second, first / 2);
    EXPECT_LE(across(), second);
  });
}

// Whatever writes parameters: the next forward has what was written.
TEST_P(KeptCopies, AreThoseOfTheLatestParameters) {
  const Folder folder;
  int runs = 0;
  const auto trained = [&](const Plan& plan) {
    const std::string checkpoints = folder.path() + "/" + std::to_string(runs++);
    return train_by(on_hosts(plan), lm_with_dropout(0.1), [&](Lm& model, Engine& engine, Outcome& run, int rank) {
      const auto step = [&] { run.record(train_step(model, engine)); };
      step();
      engine.save(checkpoints);
      step();
      {
        const auto scope = gather({model.norm->weight, model.embed->weight}, /*from_rank=*/1);
        const at::NoGradGuard no_grad;
        if (rank == 1) model.norm->weight.mul_(2), model.embed->weight.mul_(0.5);
      }
      step();
      engine.load(checkpoints);
      step();
      const torch::NoGradGuard no_grad;
      model.eval();
      run.losses.push_back(model.loss(9).item<double>());
    });
  };
  for (const Plan& plan : {Plan::zero3(), Plan::zero3().bf16().accumulate(2)})
    EXPECT_EQ(difference(trained(plan), trained(kept(plan))), "");
}

// A rank that is still in a scope would serve from its copy what others, who have left it, gather anew.
TEST_P(KeptCopies, EndWithAScopeOnAllRanksAtOnce) {
  for (const bool throws : {false, true})
    for (const Plan& plan : {kept(), kept(Plan::zero3().gather_in(Wire::int8))}) {
      std::vector<double> losses(4);
      std::atomic<int> at_the_end = 0;
      std::atomic<bool> last = false;
      run_ranks(
          4,
          [&](const World& world) {
            const auto model = std::make_shared<Lm>();
            initialise(*model, kSeed);
            const Mesh mesh(world, {.shard = 2});
            Engine engine(*model, mesh, plan, AdamW{});
            train_step(*model, engine);
            try {
              const auto scope = gather({model->norm->weight});
              if (world.rank() == 3) {
                while (at_the_end < 3) torch::randn({200, 200}).mm(torch::randn({200, 200}));
                last = true;
              }
              ++at_the_end;
              if (throws && world.rank() == 1) throw std::runtime_error("of the program");
            } catch (const std::runtime_error&) {
            }
            EXPECT_TRUE(last) << "a rank has left the scope before another";
            model->eval();
            const torch::NoGradGuard no_grad;
            losses[static_cast<std::size_t>(world.rank())] = model->loss(3).item<double>();
          },
          std::chrono::hours(1), 2);
      for (const double loss : losses) EXPECT_EQ(loss, losses[0]);
    }
}

INSTANTIATE_TEST_SUITE_P(All, KeptCopies, testing::Values(KeptCopy::shard, KeptCopy::host),
                         [](const auto& tested) { return std::string(name(tested.param)); });

TEST(ZeroPlusPlus, AsksForGroupsWhereOneGroupHasSeveralHosts) {
  for (const Plan& plan : {Plan::zeropp(), Plan::sdp4bit(), Plan::zero3().keep_gathered(KeptCopy::shard),
                           Plan::ddp().reduce_in(Wire::int8)})
    EXPECT_TRUE(says(
        thrown_by([&] { on_ranks<Lm>({.plan = plan, .ranks = 4, .ranks_per_host = 2}, {}, [](Lm&, Engine&, int) {}); }),
        {"all 4 ranks are one, on several hosts", "{.shard = 2}"}));
}

TEST(ZeroPlusPlus, TrainsNearlyAsWell) {
  const auto last = [](const Plan& plan) {
    return train<Lm>({plan, 4, AdamW{.lr = 2e-3, .eps = 1e-4}, {}, 30, 2}).losses.back();
  };
  const double exact = last(Plan::zero3().bf16());
  for (const Plan& plan : {Plan::zeropp().bf16(), Plan::sdp4bit().bf16()}) {
    EXPECT_NE(exact, last(plan)) << plan.label();
    EXPECT_NEAR(exact, last(plan), 0.05 * exact) << plan.label();
  }
}

// As operators have them.
double evaluated(Lm& model) {
  const torch::NoGradGuard no_grad;
  model.eval();
  const double loss = model.loss(9).item<double>();
  model.train();
  return loss;
}

Plan differences(KeptCopy copy = KeptCopy::shard) {
  return Plan::zero3().keep_gathered(copy).gather_in(Wire::int4_differences);
}

// What all ranks compute with is the same, and not what the shards are.
TEST(Differences, AreFromWhatACheckpointHas) {
  const Folder folder;
  std::vector<double> losses(4), exact(4);
  on_ranks<Lm>(on_hosts(differences()), lm_with_dropout(0), [&](Lm& model, Engine& engine, int rank) {
    for (int step = 0; step < 3; ++step) train_step(model, engine);
    losses[static_cast<std::size_t>(rank)] = evaluated(model);
    engine.save(folder.path());
  });
  for (const int shard : {1, 2, 4})
    for (const KeptCopy copy : {KeptCopy::shard, KeptCopy::host})
      on_ranks<Lm>({.plan = differences(copy), .ranks = 4, .shard = shard}, lm_with_dropout(0),
                   [&](Lm& model, Engine& engine, int rank) {
                     engine.load(folder.path());
                     const double loss = evaluated(model);
                     const bool crosses = shard < 4 || copy == KeptCopy::host;
                     EXPECT_EQ(losses[static_cast<std::size_t>(rank)] == loss, crosses) << shard << " " << loss;
                     if (!crosses) exact[static_cast<std::size_t>(rank)] = loss;
                   });
  on_ranks<Lm>({.plan = Plan::zero3(), .ranks = 4}, lm_with_dropout(0), [&](Lm& model, Engine& engine, int rank) {
    engine.load(folder.path());
    EXPECT_EQ(evaluated(model), exact[static_cast<std::size_t>(rank)]) << "in one group slices have nothing to cross";
  });
}

// Whoever has evaluated since the update, and whatever was in the memory that the copy comes to.
TEST(Differences, GoOnInANewEngine) {
  for (const KeptCopy copy : {KeptCopy::shard, KeptCopy::host}) {
    const Folder folder;
    const Job job = on_hosts(differences(copy).bf16());
    const auto trained = [&](const std::function<void(Lm&, Engine&, int rank)>& begin) {
      return train_by(job, lm_with_dropout(0.1), [&](Lm& model, Engine& engine, Outcome& run, int rank) {
        begin(model, engine, rank);
        for (int step = 0; step < 3; ++step) run.record(train_step(model, engine));
      });
    };
    const Outcome uninterrupted = trained([&](Lm& model, Engine& engine, int rank) {
      for (int step = 0; step < 2; ++step) train_step(model, engine);
      if (rank == 0) static_cast<void>(evaluated(model));
      engine.save(folder.path());
    });
    fill_new_memory(0xff);  // NaN of every type
    const Outcome resumed = trained([&](Lm&, Engine& engine, int) { engine.load(folder.path()); });
    fill_new_memory(std::nullopt);
    EXPECT_EQ(difference(uninterrupted, resumed), "") << name(copy);
  }
}

TEST(Differences, BeginAnewWithWhatIsWritten) {
  for (const KeptCopy copy : {KeptCopy::shard, KeptCopy::host}) {
    const auto written = [](const Plan& plan) {
      return train_by(on_hosts(plan), lm_with_dropout(0), [&](Lm& model, Engine& engine, Outcome& run, int rank) {
        for (int step = 0; step < 3; ++step) train_step(model, engine);
        {
          const auto scope = gather(model.parameters(), /*from_rank=*/1);
          const at::NoGradGuard no_grad;
          for (std::size_t i = 0; at::Tensor & each : model.parameters())
            if (rank == 1) each.copy_(0.1 * numbers(static_cast<std::int64_t>(i++), each.sizes().vec()));
        }
        run.losses.push_back(evaluated(model));
      });
    };
    EXPECT_EQ(written(differences(copy)).losses, written(Plan::zero3()).losses);
  }
}

// Evaluations bring what the next step would have.
TEST(Differences, AreTheSameWhoeverComesFirst) {
  const auto trained = [](bool evaluates) {
    return train_by(on_hosts(Plan::sdp4bit().bf16()), lm_with_dropout(0.1),
                    [&](Lm& model, Engine& engine, Outcome& run, int) {
                      for (int step = 0; step < 4; ++step) {
                        run.record(train_step(model, engine));
                        if (evaluates) static_cast<void>(evaluated(model));
                      }
                    });
  };
  EXPECT_EQ(difference(trained(true), trained(false)), "");
}

}  // namespace zero::test::kept_copies_test
