// Activations within a budget: what is dropped, what it is read by, what becomes of it where the program does
// otherwise.
#include <malloc.h>
#include <torch/torch.h>

#include <new>
#include <sstream>
#include <thread>

#include "activation_trials.h"
#include "covering.h"
#include "deep.h"
#include "folder.h"
#include "harness.h"
#include "lm.h"
#include "memory/torch/arena_allocator.h"
#include "zero/activations.h"

namespace zero::test::activation_budget_test {

TEST(ActivationBudgets, AreKeptToFromTheFirstMicroBatch) {
  ActivationReport report;
  const std::vector<float> without = plain_losses(within({.share = 1}), 5, &report);
  const std::int64_t all = report.unlimited_bytes;
  ASSERT_GT(all, 100'000);
  for (const int percent : {80, 60, 45}) {
    const std::int64_t budget = all * percent / 100;
    for (int steps = 1; steps <= 5; ++steps) {
      EXPECT_EQ(plain_losses(within({.bytes = budget}), steps, &report),
                std::vector<float>(without.begin(), without.begin() + steps));
      EXPECT_LE(report.peak_bytes, budget) << percent << " % after " << steps;
    }
    EXPECT_GT(report.recomputations, 0);
    EXPECT_NEAR(static_cast<double>(report.planned_bytes), static_cast<double>(report.peak_bytes), 1024);
  }
}

TEST(ActivationBudgets, AsSharesAreOfWhatTheFirstMicroBatchTook) {
  ActivationReport report;
  plain_losses(within({.share = .5}), 5, &report);
  EXPECT_NEAR(static_cast<double>(report.budget_bytes), .5 * static_cast<double>(report.unlimited_bytes), 1);
  EXPECT_LE(report.peak_bytes, report.budget_bytes);
  EXPECT_GT(report.recomputations, 0);
}

TEST(ActivationBudgets, ThatCannotBeMetAreRefusedWithTheLeast) {
  const std::string said = thrown_by([] { plain_losses(within({.bytes = 20'000}), 3); });
  EXPECT_TRUE(says(said, {"an activation budget of 20000 bytes cannot be met: the least for this micro-batch is ",
                          "most alone needs operator ", " of the micro-batch ("}))
      << said;
}

TEST(ActivationBudgets, AreTextsOfPlans) {
  EXPECT_EQ(ActivationBudget::named("2GiB").bytes, std::int64_t{2} << 30);
  EXPECT_EQ(ActivationBudget::named("500M").bytes, 500'000'000);
  EXPECT_EQ(ActivationBudget::named("50%").share, .5);
  EXPECT_EQ(ActivationBudget::named("12.5%").text(), "12.5%");
  EXPECT_FALSE(ActivationBudget::named(""));
  for (const char* const text : {"0", "-1", "101%", "half", "5 apples", "1e30", "%", "12XiB"})
    EXPECT_TRUE(says(thrown_by([&] { ActivationBudget::named(text); }), {"is no budget for activations"})) << text;
}

// Which no operator sees.
TEST(ActivationBudgets, PointersToWhatWasDroppedAreRefusedByName) {
  const Trials trials;
  const std::string said = thrown_by([] {
    losses(within({.share = .01}), 3, [](Deep& model, int step) {
      at::Tensor early;
      return model.loss(input(step), [&](int layer, at::Tensor& y) {
        if (layer == 0) early = y.detach();
        if (layer == 7) static_cast<void>(early.data_ptr<float>());
      });
    });
  });
  EXPECT_TRUE(says(said, {"dropped to keep within the activation budget", "zero::keep()"})) << said;
}

TEST(ActivationBudgets, LeaveWhatIsKept) {
  const auto run = [](const Plan& plan) {
    std::vector<float> seen;
    losses(plan, 4, [&](Deep& model, int step) {
      at::Tensor early;
      return model.loss(input(step), [&](int layer, at::Tensor& y) {
        if (layer == 0) early = keep(y.detach());
        if (layer == 7) seen.push_back(early.data_ptr<float>()[5]);
      });
    });
    return seen;
  };
  const std::vector<float> without = run(Plan::zero3());
  const Trials trials;
  EXPECT_EQ(run(within({.share = .01})), without);
  EXPECT_GT(trials.recomputed(), 0);
}

// Written past operators it comes back with other values, which is seen where it is compared.
TEST(ActivationBudgets, SeeThatAnActivationWasWrittenPastOperators) {
  const Trials trials;
  const std::string said = thrown_by([] {
    losses(within({.bytes = 60'000}), 4, [](Deep& model, int step) {
      return model.loss(input(step), [](int layer, at::Tensor& y) {
        if (layer == 1) y.data_ptr<float>()[0] = 7;
      });
    });
  });
  EXPECT_TRUE(says(said, {"came back with other values", "zero::keep()"})) << said;
}

// A tensor of the program's own is changed behind version counters while what was dropped comes of it.
TEST(ActivationBudgets, ComputeAgainBeforeWhatTheyNeedIsChanged) {
  const auto run = [](const Plan& plan) {
    return losses(plan, 4, [](Deep& model, int step) {
      at::Tensor outside = at::ones({64});
      return model.loss(input(step), [&](int layer, at::Tensor& y) {
        y = y + outside;
        if (layer == 4) outside.data().add_(5);
      });
    });
  };
  const std::vector<float> without = run(Plan::zero3());
  for (const std::uint32_t seed : {0U, 1U, 2U, 3U}) {
    const Trials trials(seed);
    EXPECT_EQ(run(within({.share = .01})), without);
    EXPECT_GT(trials.recomputed(), 0);
  }
}

TEST(ActivationBudgets, GoOnBehindAForwardThatThrows) {
  const auto run = [](const Plan& plan) {
    return losses(plan, 5, [](Deep& model, int step) {
      const auto fails = [&] {
        model.loss(input(step), [](int layer, at::Tensor&) {
          if (layer == 5) throw std::runtime_error("of the program");
        });
      };
      if (step == 2) {
        EXPECT_TRUE(says(thrown_by(fails), {"of the program"}));
      }
      return model.loss(input(step));
    });
  };
  const std::vector<float> without = run(Plan::zero3());
  const Trials trials;
  EXPECT_EQ(run(within({.share = .4})), without);
  EXPECT_GT(trials.recomputed(), 0);
}

TEST(ActivationBudgets, GoThroughARetainedGraphAgain) {
  const auto run = [](const Plan& plan) {
    auto model = std::make_shared<Deep>();
    Engine engine(*model, World(), plan.accumulate(2), AdamW{});
    std::vector<float> all;
    for (int step = 0; step < 4; ++step) {
      const at::Tensor loss = model->loss(input(step));
      loss.backward({}, /*retain_graph=*/true);
      loss.backward();
      engine.step();
      all.push_back(loss.item<float>());
    }
    return all;
  };
  const std::vector<float> without = run(Plan::zero3());
  const Trials trials;
  EXPECT_EQ(run(within({.share = .3})), without);
  EXPECT_GT(trials.recomputed(), 0);
}

// What the program holds beyond the step has the values of before it.
TEST(ActivationBudgets, BringBackWhatTheProgramHoldsBeforeTheUpdate) {
  const auto run = [](const Plan& plan) {
    std::vector<at::Tensor> held;
    losses(plan, 4, [&](Deep& model, int step) {
      return model.loss(input(step), [&](int layer, at::Tensor& y) {
        if (layer == 3) held.push_back(y);
      });
    });
    std::vector<float> sums;
    for (const at::Tensor& each : held) sums.push_back(each.detach().sum().item<float>());
    return sums;
  };
  const std::vector<float> without = run(Plan::zero3());
  const Trials trials;
  EXPECT_EQ(run(within({.share = .3})), without);
  EXPECT_GT(trials.recomputed(), 0);
}

// From the fourth step on the program holds activations longer than the plan has seen.
TEST(ActivationBudgets, AreKeptToWhereStoragesEndLaterThanForetold) {
  ActivationReport report;
  std::vector<at::Tensor> held;
  std::vector<std::int64_t> peaks;
  const auto run = [&](const Plan& plan) {
    peaks.clear();
    return losses(
        plan, 7,
        [&](Deep& model, int step) {
          held.clear();
          if (step > 0) peaks.push_back(report.peak_bytes);
          return model.loss(input(step), [&](int, at::Tensor& y) {
            if (step >= 3) held.push_back(y.detach());
          });
        },
        &report);
  };
  const std::vector<float> without = run(within({.share = 1}));
  const std::int64_t budget = report.unlimited_bytes * 55 / 100;
  EXPECT_EQ(run(within({.bytes = budget})), without);
  EXPECT_EQ(peaks.size(), 6U);
  for (const std::int64_t each : peaks) EXPECT_LE(each, budget);
  EXPECT_GT(report.recomputations, 0);
}

// Two shapes that alternate have a plan each; a hundred shapes leave no more than a few.
TEST(ActivationBudgets, HaveAPlanForEachShape) {
  ActivationReport report;
  int planned = 0;
  const auto run = [&](const Plan& plan) {
    planned = 0;
    auto model = std::make_shared<Deep>();
    Engine engine(*model, World(), plan, AdamW{});
    std::vector<float> all;
    for (int step = 0; step < 12; ++step) {
      const at::Tensor loss = model->loss(input(step, step % 2 == 0 ? 32 : 48));
      engine.backward(loss);
      engine.step();
      all.push_back(loss.item<float>());
      report = engine.activations();
      if (step >= 6 && report.planned_bytes > 0) ++planned;
    }
    return all;
  };
  const std::vector<float> without = run(Plan::zero3());
  EXPECT_EQ(run(within({.share = .6})), without);
  EXPECT_EQ(planned, 6);
}

// A thousand random lengths, a hundred in short tests: each micro-batch as it comes, or by one of a few plans; what is
// kept of them stays as much.
TEST(ActivationBudgets, HoldForLengthsThatNeverRepeat) {
  std::vector<std::size_t> allocated;
  const auto run = [&](const Plan& plan) {
    return losses(plan, long_tests() ? 1000 : 100, [&](Deep& model, int step) {
      if (step % 20 == 0) allocated.push_back(mallinfo2().uordblks);
      return model.loss(input(step, 16 + (step * 7919) % 61));
    });
  };
  const std::vector<float> without = run(Plan::zero3());
  const Trials trials;
  allocated.clear();
  EXPECT_EQ(run(within({.bytes = 60'000})), without);
  EXPECT_GT(trials.recomputed(), 0);
  EXPECT_LE(allocated.back(), allocated[2] + 1'000'000);
}

// What runs again has seen the batch before: running statistics are its own the second time.
TEST(ActivationBudgets, LeaveRunningStatisticsAsTheyAre) {
  const auto statistics = [](double share) {
    const Trials trials;
    torch::manual_seed(3);
    torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::BatchNorm1d(32), torch::nn::ReLU(),
                              torch::nn::Linear(32, 32), torch::nn::BatchNorm1d(32), torch::nn::ReLU());
    Engine engine(*net, World(), Plan::zero3().activation_budget({.share = share}), AdamW{});
    for (int step = 0; step < 4; ++step) {
      engine.backward(net->forward(numbers(step, {64, 16})).square().mean());
      engine.step();
    }
    EXPECT_EQ(trials.recomputed() > 0, share < 1);
    std::vector<at::Tensor> all;
    for (const at::Tensor& each : net->buffers()) all.push_back(each.clone());
    return all;
  };
  const std::vector<at::Tensor> whole = statistics(1), within = statistics(.4);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(at::equal(whole[i], within[i])) << i;
}

// What is saved goes through the program's hooks, which make other storages of it.
TEST(ActivationBudgets, GoThroughHooksOnSavedTensors) {
  struct Twice final : torch::autograd::SavedVariableHooks {
    void call_pack_hook(const at::Tensor& tensor) override { packed = tensor.detach() * 2; }
    at::Tensor call_unpack_hook() override { return packed / 2; }
    std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data() const override {
      return std::nullopt;
    }
    at::Tensor packed;
  };
  struct Hooked : torch::autograd::Function<Hooked> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
      context->saved_data["x"] = x.detach() * 2;
      return x.sin();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
      return {gradients[0] * (context->saved_data["x"].toTensor() / 2).cos()};
    }
  };
  const auto run = [](const Plan& plan) {
    return losses(plan, 4, [](Deep& model, int step) {
      return model.loss(input(step), [](int, at::Tensor& y) {
        y = Hooked::apply(y);
        const at::Tensor tanh = y.tanh();
        torch::autograd::SavedVariable saved(y, false);
        saved.register_hooks(std::make_unique<Twice>());
        y = tanh * saved.unpack(y.grad_fn()).detach();
      });
    });
  };
  const std::vector<float> without = run(Plan::zero3());
  for (const std::uint32_t seed : {0U, 1U, 2U}) {
    const Trials trials(seed);
    EXPECT_EQ(run(within({.share = .01})), without);
    EXPECT_GT(trials.recomputed(), 0);
  }
}

// An operator that runs again has no memory: the error goes through backward, and training goes on behind it.
TEST(ActivationBudgets, GoOnBehindAnExceptionInTheMiddleOfARecomputation) {
  static int until = -1;
  const auto probe = [](std::size_t bytes) {
    if (bytes >= 4096 && until > 0 && --until == 0) throw std::bad_alloc();
  };
  const auto run = [&](const Plan& plan, bool fails) {
    return losses(plan, 6, [&](Deep& model, int step) {
      if (step == 4 && fails) {
        const at::Tensor lost = model.loss(input(9));
        until = 12;
        set_allocation_probe(probe);
        EXPECT_NE(thrown_by([&] { lost.backward(); }), "");
        set_allocation_probe(nullptr);
      }
      return model.loss(input(step));
    });
  };
  const std::vector<float> without = run(Plan::zero3(), false);
  const Trials trials;
  EXPECT_EQ(run(within({.share = .3}), true), without);
  EXPECT_GT(trials.recomputed(), 0);
}

// An engine that ends leaves an error in the place of what it has dropped.
TEST(ActivationBudgets, NameWhatAnEndedEngineHasDropped) {
  const Trials trials;
  at::Tensor held;
  {
    auto model = std::make_shared<Deep>();
    Engine engine(*model, World(), within({.bytes = 20'000}), AdamW{});
    const at::Tensor loss = model->loss(input(0), [&](int layer, at::Tensor& y) {
      if (layer == 0) held = y.detach();
    });
  }
  ASSERT_GT(held.numel(), 0);
  EXPECT_TRUE(says(thrown_by([&] { held.sum().item<float>(); }), {"dropped to keep within the activation budget"}));
}

// Ranks whose micro-batches differ in shape drop what each likes.
TEST(ActivationBudgets, MayBeMetDifferentlyByEachRank) {
  const auto run = [](const Plan& plan) {
    std::vector<std::vector<float>> all(2);
    run_ranks(2, [&](const World& world) {
      auto model = std::make_shared<Deep>();
      Engine engine(*model, world, plan, AdamW{});
      for (int step = 0; step < 5; ++step) {
        const at::Tensor loss = model->loss(input(step, world.rank() == 0 ? 24 : 56));
        engine.backward(loss);
        engine.step();
        all[static_cast<std::size_t>(world.rank())].push_back(loss.item<float>());
      }
    });
    return all;
  };
  const auto without = run(Plan::zero3());
  const Trials trials;
  EXPECT_EQ(run(within({.share = .3})), without);
  EXPECT_GT(trials.recomputed(), 0);
}

// Products in FP8 read past operators what may have been dropped.
TEST(ActivationBudgets, KeepToTheBitsOfFloat8) {
  const Plan plan = Plan::zero3().precision(Precision::fp8);
  const std::vector<float> without = plain_losses(plan, 5);
  for (const std::uint32_t seed : {0U, 1U, 2U}) {
    const Trials trials(seed);
    EXPECT_EQ(plain_losses(plan.activation_budget({.share = .01}), 5), without);
    EXPECT_GT(trials.recomputed(), 0);
  }
}

// The same key of the dispatcher: neither ends the other's.
TEST(ActivationBudgets, StandBesideModulesWithoutMemory) {
  const auto run = [](const Plan& plan) {
    return losses(plan, 4, [](Deep& model, int step) {
      return model.loss(input(step), [](int layer, at::Tensor&) {
        if (layer != 5) return;
        const Deferring deferring;
        static_cast<void>(torch::nn::Linear(64, 64));
      });
    });
  };
  const std::vector<float> without = run(Plan::zero3());
  const Trials trials;
  EXPECT_EQ(run(within({.share = .01})), without);
  EXPECT_GT(trials.recomputed(), 0);
}

// Saved, loaded, written in scopes, without data, released, with a graph that is kept across all of it.
TEST(ActivationBudgets, GoThroughWhatChangesParameters) {
  const auto run = [](const Plan& plan) {
    const Folder folder;
    auto model = std::make_shared<Deep>();
    std::vector<float> all;
    at::Tensor kept;
    {
      Engine engine(*model, World(), plan, AdamW{});
      for (int step = 0; step < 6; ++step) {
        at::Tensor held;
        const at::Tensor loss = model->loss(input(step), [&](int layer, at::Tensor& y) {
          if (layer == 2) held = y.detach();
        });
        loss.backward({}, /*retain_graph=*/step == 4);
        if (step == 1) engine.discard();
        if (step == 2) engine.zero_grad();
        if (step != 1 && step != 2) engine.step();
        if (step == 3) engine.save(folder.path());
        if (step == 4) engine.load(folder.path());
        if (step == 5) {
          const auto scope = gather(model->parameters());
          const at::NoGradGuard no_grad;
          for (const at::Tensor& each : model->parameters()) each.mul_(.5);
        }
        all.push_back(loss.item<float>());
        all.push_back(held.sum().item<float>());
        kept = held;
      }
      engine.release();
    }
    all.push_back(kept.sum().item<float>());
    for (const at::Tensor& each : model->parameters()) all.push_back(each.detach().sum().item<float>());
    return all;
  };
  const std::vector<float> without = run(Plan::zero3());
  const Trials trials;
  EXPECT_EQ(run(within({.share = .01})), without);
  EXPECT_GT(trials.recomputed(), 0);
}

}  // namespace zero::test::activation_budget_test
