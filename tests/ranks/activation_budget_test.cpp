// Activations within a budget: what is dropped, what it is read by, what becomes of it where the program does
// otherwise.
#include <torch/torch.h>

#include <sstream>
#include <thread>

#include "activation_trials.h"
#include "folder.h"
#include "harness.h"
#include "lm.h"
#include "zero/activations.h"

namespace zero::test::activation_budget_test {

struct Deep : torch::nn::Module {
  explicit Deep(int layers = 8) {
    for (int i = 0; i < layers; ++i)
      stack->push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(64, 64)));
    const at::NoGradGuard no_grad;
    at::Generator generator = at::detail::createCPUGenerator(1);
    for (const at::Tensor& each : parameters()) each.copy_(at::randn(each.sizes(), generator) * .1);
  }
  // `look`: at each activation.
  at::Tensor loss(const at::Tensor& x, const std::function<void(int, at::Tensor&)>& look = {}) {
    at::Tensor y = x;
    for (std::size_t i = 0; i < stack->size(); ++i) {
      y = torch::gelu(stack->ptr<torch::nn::LinearImpl>(i)->forward(y));
      if (look) look(static_cast<int>(i), y);
    }
    return y.square().mean();
  }
  torch::nn::ModuleList stack{};
};

at::Tensor input(int index, std::int64_t rows = 32) {
  return at::randn({rows, 64}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 + index)));
}

Plan within(const ActivationBudget& budget) {
  return Plan::zero3().activation_budget(budget);
}

// One rank, some steps; the losses, to the bit.
std::vector<float> losses(const Plan& plan, int steps, const std::function<at::Tensor(Deep&, int step)>& loss,
                          ActivationReport* report = nullptr) {
  auto model = std::make_shared<Deep>();
  Engine engine(*model, World(), plan, AdamW{});
  std::vector<float> all;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor value = loss(*model, step);
    engine.backward(value);
    engine.step();
    all.push_back(value.item<float>());
    if (report != nullptr) *report = engine.activations();
  }
  return all;
}

std::vector<float> plain_losses(const Plan& plan, int steps, ActivationReport* report = nullptr) {
  return losses(
      plan, steps, [](Deep& model, int step) { return model.loss(input(step)); }, report);
}

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

// What operators read of what was dropped; each looks at an early activation late in the forward.
struct Reader {
  const char* name;
  std::function<double(at::Tensor& tensor)> read;
};
class ReadersOfDropped : public testing::TestWithParam<Reader> {};

TEST_P(ReadersOfDropped, SeeItsValues) {
  const auto run = [&](const Plan& plan) {
    std::vector<double> seen;
    losses(plan, 4, [&](Deep& model, int step) {
      at::Tensor early;
      return model.loss(input(step), [&](int layer, at::Tensor& y) {
        if (layer == 0) early = y.detach() * 2;
        if (layer == 6) seen.push_back(GetParam().read(early));
      });
    });
    return seen;
  };
  const std::vector<double> without = run(Plan::zero3());
  const Trials trials;
  EXPECT_EQ(run(within({.share = .01})), without);
  EXPECT_GT(trials.recomputed(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, ReadersOfDropped,
    testing::Values(Reader{"Item", [](at::Tensor& x) { return x[3][4].item<double>(); }},
                    Reader{"Print",
                           [](at::Tensor& x) {
                             std::ostringstream text;
                             text << x;
                             return static_cast<double>(std::hash<std::string>()(text.str()) % 1000003);
                           }},
                    Reader{"Equal", [](at::Tensor& x) { return at::equal(x, x.clone()) ? 1.0 : 0.0; }},
                    Reader{"ViewsOfViews",
                           [](at::Tensor& x) {
                             return x.t().slice(0, 3, 40, 2).unsqueeze(1).contiguous().sum().item<double>();
                           }},
                    Reader{"InPlace", [](at::Tensor& x) { return x.select(0, 1).add_(1).sum().item<double>(); }},
                    Reader{"Out",
                           [](at::Tensor& x) {
                             at::add_out(x, at::ones_like(x), at::ones_like(x));
                             return x.sum().item<double>();
                           }},
                    Reader{"SetData",
                           [](at::Tensor& x) {
                             x.set_data(at::ones({64, 64}));
                             return x.sum().item<double>();
                           }},
                    Reader{"Inference",
                           [](at::Tensor& x) {
                             const c10::InferenceMode on;
                             return (x + 1).sum().item<double>();
                           }},
                    Reader{"Saved",
                           [](at::Tensor& x) {
                             std::stringstream file;
                             torch::save(x.clone(), file);
                             at::Tensor y;
                             torch::load(y, file);
                             return y.sum().item<double>();
                           }}),
    [](const auto& each) { return std::string(each.param.name); });

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

// Random lengths: each micro-batch as it comes.
TEST(ActivationBudgets, HoldForLengthsThatNeverRepeat) {
  const auto run = [](const Plan& plan) {
    return losses(plan, 60, [](Deep& model, int step) { return model.loss(input(step, 16 + (step * 7919) % 61)); });
  };
  const std::vector<float> without = run(Plan::zero3());
  const Trials trials;
  EXPECT_EQ(run(within({.bytes = 60'000})), without);
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
