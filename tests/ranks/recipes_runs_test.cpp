// Recipes of docs/recipes.md for what is around the steps of a run. unit/documented_code_test holds the document
// against this file.
#include <array>
#include <cstdio>
#include <limits>
#include <optional>

#include "familiar_programs.h"
#include "folder.h"

namespace zero::test::recipes_runs_test {

// Every rank has as many batches: while a rank is in all_reduce() it gathers nothing for the others.
double evaluate(Regressor& net, const Batches& data, const zero::World& world) {
  const torch::NoGradGuard no_grad;
  net->eval();
  std::array<double, 2> sums{};  // of losses, and how many
  for (const auto& [x, y] : data) {
    sums[0] += torch::mse_loss(net->forward(x), y, torch::Reduction::Sum).item<double>();
    sums[1] += static_cast<double>(y.numel());
  }
  net->train();
  world.communicator().all_reduce({sums.data(), 2, zero::Dtype::f64}).wait();
  return sums[0] / sums[1];
}

// Early stopping, and the best model. All ranks see the same loss, so all stop after the same epoch.
int train_until_worse(Regressor& net, const Batches& data, const Batches& held_out, const std::string& folder,
                      const zero::World& world, const zero::Plan& plan) {
  zero::Engine engine(*net, world, plan, zero::AdamW{.lr = 1e-2});
  double best = std::numeric_limits<double>::infinity();
  int epochs = 0;
  for (int worse = 0; worse < 2 && epochs < 30; ++epochs) {
    for (const auto& [x, y] : data) {
      engine.backward(torch::mse_loss(net->forward(x), y));
      engine.step();
    }
    const double loss = evaluate(net, held_out, world);
    ++worse;
    if (!(loss < best)) continue;
    best = loss;
    worse = 0;
    engine.save(folder, {.user = R"({"loss": )" + std::to_string(loss) + "}", .keep_last = 1});
  }
  return epochs;
}

Regressor best_of(const std::string& folder) {
  Regressor net;
  zero::load_safetensors(*net, zero::find_checkpoint(folder).folder);
  return net;
}

TEST(RunRecipes, EarlyStoppingAndTheBestModel) {
  std::optional<Outcome> ddp;
  for (const Plan& plan : all_plans()) {
    SCOPED_TRACE(plan.label());
    const Folder folder;
    std::array<int, 2> epochs{};
    run_ranks(2, [&](const World& world) {
      auto net = begun<Regressor>();
      epochs[static_cast<std::size_t>(world.rank())] = train_until_worse(
          net, batches(world.rank(), 6, 3), batches(20 + world.rank(), 6, 3), folder.path(), world, plan);
    });
    EXPECT_EQ(epochs[0], epochs[1]);
    EXPECT_GE(epochs[0], 3);
    EXPECT_LT(epochs[0], 30) << "the held-out loss rises";
    EXPECT_EQ(checkpoint_steps(folder.path()), std::vector<std::int64_t>{4 * (epochs[0] - 2)});
    const Outcome best = left_by({{"", best_of(folder.path()).get()}});
    EXPECT_EQ(difference(ddp.value_or(best), best), "");
    ddp = best;
  }
}

// What only some ranks have heard, all act on after the same step.
constexpr std::uint32_t kStop = 1;

int train_until_told(Regressor& net, const Batches& data, const std::function<bool()>& out_of_time,
                     const zero::World& world, const zero::Plan& plan) {
  zero::Engine engine(*net, world, plan, zero::Sgd{.lr = 0.1});
  int steps = 0;
  for (const auto& [x, y] : data) {
    engine.backward(torch::mse_loss(net->forward(x), y));
    if (out_of_time()) engine.request(kStop);
    const zero::StepReport report = engine.step();
    ++steps;
    if ((report.requests & kStop) != 0) break;
  }
  return steps;
}

TEST(RunRecipes, StoppingWhereOneRankIsTold) {
  for (const Plan& plan : all_plans())
    run_ranks(2, [&](const World& world) {
      auto net = begun<Regressor>();
      int asked = 0;
      const auto out_of_time = [&] { return ++asked == 2 && world.rank() == 1; };
      EXPECT_EQ(train_until_told(net, batches(world.rank(), 6, 3), out_of_time, world, plan), 2);
    });
}

// Every rank has the same report; one of them writes it.
std::string line_of(const zero::StepReport& report) {
  std::array<char, 160> line{};
  std::snprintf(line.data(), line.size(), "step %ld  loss %.4f  norm %.3f  lr %.2e  %s", static_cast<long>(report.step),
                report.loss, report.grad_norm, report.lr, report.skipped ? "skipped" : "applied");
  return line.data();
}

void train_and_log(Regressor& net, const Batches& data, std::vector<std::string>& log, const zero::World& world,
                   const zero::Plan& plan) {
  const zero::ParamGroup body{.takes = [](const zero::ParameterInfo& info) { return info.name.starts_with("body."); }};
  zero::Engine engine(*net, world, plan, zero::Sgd{.lr = 0.1}, {.groups = {body}, .group_norms = true});
  for (const auto& [x, y] : data) {
    engine.backward(torch::mse_loss(net->forward(x), y));
    const zero::StepReport report = engine.step();
    if (world.rank() != 0 || !report.applied) continue;
    log.push_back(line_of(report) + "  norm of body " + std::to_string(report.group_norms[0]));
  }
}

TEST(RunRecipes, Logging) {
  for (const Plan& plan : all_plans()) {
    std::array<std::vector<std::string>, 2> logs;
    run_ranks(2, [&](const World& world) {
      auto net = begun<Regressor>();
      train_and_log(net, batches(world.rank(), 6, 3), logs[static_cast<std::size_t>(world.rank())], world, plan);
    });
    ASSERT_EQ(logs[0].size(), 4);
    EXPECT_TRUE(logs[1].empty());
    EXPECT_TRUE(says(logs[0][3], {"step 4  loss ", "lr 1.00e-01  applied  norm of body "}));
  }
}

// A learning rate that falls by what was measured, as LibTorch's own scheduler has it.
void train_by_plateaus(Regressor& net, const Batches& data, const Batches& held_out, const zero::World& world,
                       const zero::Plan& plan) {
  zero::Engine engine(*net, world, plan, zero::Sgd{.lr = 0.1});
  torch::optim::ReduceLROnPlateauScheduler plateau(engine.optimizer(), torch::optim::ReduceLROnPlateauScheduler::min,
                                                   /*factor=*/0.5, /*patience=*/0);
  for (int epoch = 0; epoch < 8; ++epoch) {
    for (const auto& [x, y] : data) {
      engine.backward(torch::mse_loss(net->forward(x), y));
      engine.step();
    }
    plateau.step(static_cast<float>(evaluate(net, held_out, world)));  // the same on every rank
  }
  EXPECT_LT(engine.last_step().lr, 0.1);
  engine.release();
}

TEST(RunRecipes, ALearningRateThatFallsOnPlateaus) {
  expect_same_bits([](const World& world, const Plan& plan, int data_of) {
    auto net = begun<Regressor>();
    train_by_plateaus(net, batches(data_of, 6, 3), batches(20 + data_of, 6, 3), world, plan);
    return left_by({{"", net.get()}});
  });
}

// Of the step alone, so that a run that goes on from a checkpoint goes on in it.
zero::Options warmed_up(std::int64_t steps) {
  return {.clip = 1.0, .schedule = zero::cosine_schedule({.warmup = 2, .steps = steps}, /*floor=*/0.1)};
}

Batch batch_at(std::int64_t index) {
  return {numbers(index, {5, 6}), numbers(index + 5000, {5, 3})};
}

// Goes on from the newest checkpoint that is whole, or begins.
void train_or_go_on(Regressor& net, std::int64_t until, const std::string& folder, const zero::World& world,
                    const zero::Plan& plan) {
  zero::Engine engine(*net, world, plan, zero::AdamW{.lr = 1e-2}, warmed_up(8));
  zero::prepare_checkpoints(world, folder);
  if (!zero::checkpoint_steps(folder).empty()) engine.load(folder);
  while (engine.steps() < until) {
    const auto [x, y] = batch_at(engine.micro_batch());
    engine.backward(torch::mse_loss(net->forward(x), y));
    engine.step();
    if (engine.steps() % 2 == 0) engine.save(folder, {.keep_last = 2, .background = true});
  }
  engine.finish_save();
  engine.release();
}

TEST(RunRecipes, GoingOn) {
  const auto run = [](const Plan& plan, int ranks, std::int64_t until, const std::string& folder) {
    return run_of(
        [&](const World& world, const Plan& by, int) {
          auto net = begun<Regressor>();
          train_or_go_on(net, until, folder, world, by);
          return left_by({{"", net.get()}});
        },
        plan, ranks, false);
  };
  const Folder whole;
  const Outcome expected = run(Plan::ddp(), 2, 8, whole.path());
  for (const Plan& plan : all_plans()) {
    SCOPED_TRACE(plan.label());
    const Folder folder;
    run(plan, 2, 4, folder.path());
    EXPECT_EQ(difference(expected, run(Plan::zero3(), 2, 8, folder.path())), "");
    EXPECT_EQ(checkpoint_steps(folder.path()), (std::vector<std::int64_t>{6, 8}));
  }
}

}  // namespace zero::test::recipes_runs_test
