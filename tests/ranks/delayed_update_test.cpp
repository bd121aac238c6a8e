// Updates that are computed beside the next step: which parameters a step computes with, what is seen between steps,
// and what becomes of failures.
#include <filesystem>
#include <mutex>

#include "late_stores.h"
#include "zero/error.h"

namespace zero::test::delayed_update_test {

Options with_disk() {
  return {
      .seed = 3,
      .disk = {.directories = {std::filesystem::temp_directory_path()}, .checks = true, .block = 16384, .depth = 4}};
}

Plan delayed(const Plan& plan) {
  return plan.offload(State::optimizer, Tier::disk).delay_update();
}

void copy_parameters(const torch::nn::Module& from, torch::nn::Module& to) {
  const at::NoGradGuard no_grad;
  const auto targets = to.parameters();
  const auto sources = from.parameters();
  for (std::size_t i = 0; i < sources.size(); ++i) targets[i].detach().copy_(sources[i]);
}

// By plain LibTorch: a step's gradients are those of the parameters before the latest update.
Outcome train_one_behind(const Job& job) {
  Lm latest, used, before;
  for (Lm* const each : {&latest, &used}) initialise(*each, kSeed);
  PlainTrainer trainer(latest, job);
  std::int64_t index = 0;
  for (int step = 0; step < job.steps; ++step) {
    for (int i = 0; i < job.ranks * job.plan.accumulate(); ++i) trainer.backward(used.loss(index++));
    const auto from = used.parameters(), to = latest.parameters();
    for (std::size_t i = 0; i < from.size(); ++i) to[i].mutable_grad() = std::exchange(from[i].mutable_grad(), {});
    copy_parameters(latest, before);
    trainer.step();
    copy_parameters(before, used);
  }
  return trainer.finish();
}

TEST(DelayedUpdate, IsOneStepBehind) {
  for (const int ranks : {1, 2})
    for (const int accumulate : {1, 2})
      for (const Optimizer& optimizer : {Optimizer(Sgd{.lr = 0.1, .momentum = 0.9}), Optimizer(AdamW{.lr = 2e-3})}) {
        Job job{.plan = Plan::ddp().accumulate(accumulate), .ranks = ranks, .optimizer = optimizer, .steps = 5};
        job.options = with_disk();
        const Outcome expected = train_one_behind(job);
        EXPECT_NE(difference(expected, train_plain<Lm>(job), 1e-5), "") << "the order of steps would not matter";
        for (const Plan& plan : all_plans()) {
          job.plan = delayed(plan.accumulate(accumulate));
          SCOPED_TRACE(describe(job));
          Outcome outcome = train<Lm>(job);
          std::erase_if(outcome.parameters, [](const auto& item) { return item.first.ends_with(" as stored"); });
          EXPECT_EQ(difference(expected, outcome, 1e-5), "");
        }
      }
}

// Reads what the model computes without gradients.
double evaluated(Lm& model, std::int64_t index) {
  const at::NoGradGuard no_grad;
  return model.loss(index).item<double>();
}

TEST(DelayedUpdate, IsAwaitedByWhoeverLooks) {
  for (const Plan& plan : all_plans())
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      const Job job{.plan = delayed(plan.precision(precision)), .ranks = 2, .options = with_disk()};
      SCOPED_TRACE(describe(job));
      on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
        const double first = evaluated(model, 77);
        train_step(model, engine);
        const double latest = evaluated(model, 77);
        EXPECT_NE(first, latest);
        EXPECT_EQ(model.loss(77).item<double>(), latest);
        train_step(model, engine);
        const at::Tensor weight = engine.main_parameter(model.norm->weight);
        {
          const Gather scope(model.parameters());
          EXPECT_TRUE(model.norm->weight.to(at::kFloat).allclose(weight, 1e-2, 1e-2));
        }
        EXPECT_NE(evaluated(model, 77), latest);
      });
    }
}

// Rank 0 alone knows which unit comes next, and gathers it ahead, of the step before.
TEST(DelayedUpdate, IsSeenWhereAPeerGathersAhead) {
  for (const Plan& plan : plans_of_meshes())
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      Job job{.plan = delayed(plan.precision(precision)), .ranks = 4, .options = with_disk()};
      if (plan.label().starts_with("hybrid")) job.shard = 2;
      std::mutex mutex;
      std::vector<std::vector<at::Tensor>> seen;
      on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int rank) {
        engine.backward(rank == 0 ? model.loss(1) : no_data());
        EXPECT_TRUE(engine.step().applied);
        static_cast<void>(model.blocks[0]->as<Block>()->forward(numbers(2, {3, 13})).sum().item<double>());
        engine.discard();
        const Gather scope(model.parameters());
        std::vector<at::Tensor> values;
        for (const at::Tensor& parameter : model.parameters()) values.push_back(parameter.detach().clone());
        const std::lock_guard lock(mutex);
        seen.push_back(values);
      });
      for (const std::vector<at::Tensor>& values : seen)
        for (std::size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(values[i].equal(seen[0][i])) << describe(job) << i;
    }
}

// Within a step parameters are those that it computes with.
TEST(DelayedUpdate, IsNotSeenWithinAStep) {
  const Job job{.plan = delayed(Plan::zero2().accumulate(2)), .ranks = 2, .options = with_disk()};
  on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
    train_step(model, engine);
    const at::Tensor loss = model.loss(engine.micro_batch());
    for (const auto& look : std::vector<std::function<void()>>{[&] { const Gather scope(model.parameters()); },
                                                               [&] { engine.main_parameter(model.bias); }})
      EXPECT_TRUE(says(thrown_by(look), {"rank", "within a step", "between step() and the next forward"}));
    engine.backward(loss);
    const double used = evaluated(model, 5);
    EXPECT_EQ(evaluated(model, 5), used);
    EXPECT_THROW(engine.main_parameter(model.bias), StateError);
    engine.backward(model.loss(engine.micro_batch()));
    EXPECT_TRUE(engine.step().applied);
    EXPECT_NE(evaluated(model, 5), used);
  });
}

// Dropped steps and emptied gradients leave the update before them as it was.
TEST(DelayedUpdate, OutlivesStepsThatAreDropped) {
  for (const Plan& plan : all_plans()) {
    const Job job{.plan = delayed(plan), .ranks = 2, .options = with_disk()};
    const Outcome outcome = train_by<Lm>(job, {}, [&](Lm& model, Engine& engine, Outcome& run, int) {
      for (int step = 0; step < 4; ++step) {
        if (step == 2) {
          engine.backward(model.loss(99));
          engine.discard();
        }
        run.record(train_step(model, engine));
      }
      run.parameters = parameters_of(model, engine);
    });
    Job plain = job;
    plain.steps = 4;
    EXPECT_EQ(difference(train<Lm>(plain), outcome), "") << plan.label();
  }
}

TEST(DelayedUpdate, IsReleasedWithTheParameters) {
  for (const Plan& plan : all_plans()) {
    const Job job{.plan = delayed(plan), .ranks = 2, .options = with_disk()};
    on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
      for (int step = 0; step < 2; ++step) train_step(model, engine);
      const auto latest = parameters_of(model, engine);
      train_step(model, engine);
      engine.release();
      int moved = 0;
      for (const auto& item : model.named_parameters())
        if (item.value().requires_grad()) moved += item.value().equal(latest.at(item.key())) ? 0 : 1;
      EXPECT_GT(moved, 10) << "of the third step";
    });
  }
}

// One error, at the next step; no rank waits for ever, and no half of it is used.
TEST(DelayedUpdate, TellsOfDisksThatFail) {
  std::vector<std::string> thrown(2), after(2);
  run_ranks(2, [&](const World& world) {
    const auto watch = std::make_shared<LateWatch>();
    const Late late(watch);
    Lm model;
    initialise(model, kSeed);
    Engine engine(model, world, delayed(Plan::zero2()), AdamW{}, with_disk());
    for (int step = 0; step < 2; ++step) train_step(model, engine);
    evaluated(model, 0);
    if (world.rank() == 1) {
      const std::lock_guard lock(watch->mutex);
      watch->fails_at = 3;
    }
    train_step(model, engine);
    const auto rank = static_cast<std::size_t>(world.rank());
    thrown[rank] = thrown_by([&] { train_step(model, engine); });
    after[rank] = thrown_by([&] { train_step(model, engine); });
  });
  EXPECT_TRUE(says(thrown[1], {"the update"})) << thrown[1];
  EXPECT_NE(after[0], "");
  EXPECT_TRUE(says(after[1], {"a delayed update failed", "start again from what was saved"})) << after[1];
}

TEST(DelayedUpdate, IsRefusedWhereNothingIsBesideIt) {
  EXPECT_TRUE(Plan::zero2().offload(State::optimizer, Tier::disk).delay_update().faults(2).empty());
  const auto refused = [](const Plan& plan) { return thrown_by([&] { plan.validate(2); }); };
  EXPECT_TRUE(says(refused(Plan::zero2().delay_update()), {"a delayed update needs all of the optimizer"}));
  EXPECT_TRUE(
      says(refused(delayed(Plan::zero2()).offload(State::optimizer, Tier::disk, 0.5)), {"all of the optimizer"}));
  EXPECT_TRUE(
      says(refused(delayed(Plan::zero3()).offload(State::parameter, Tier::disk)), {"parameters on the device"}));
  EXPECT_EQ(delayed(Plan::zero2()).delay_update(false), Plan::zero2().offload(State::optimizer, Tier::disk));
  EXPECT_EQ(delayed(Plan::zero2()).label(), "zero2, optimizer on disk, delayed update");
  Lm model;
  EXPECT_TRUE(says(thrown_by([&] { const Engine engine(model, World(), delayed(Plan::zero2()), Lamb{}, with_disk()); }),
                   {"optimizer lamb of parameter 'bias'", "whole tensors", "element by element"}));
}

TEST(DelayedUpdate, IsTheSameOnAllRanks) {
  const std::string said = thrown_by([] {
    run_ranks(
        2,
        [](const World& world) {
          Lm model;
          const Plan plan = delayed(Plan::zero2()).delay_update(world.rank() == 0);
          const Engine engine(model, world, plan, AdamW{}, with_disk());
        },
        kToDisagree);
  });
  EXPECT_TRUE(says(said, {"different models or plans", "delayed update"})) << said;
}

}  // namespace zero::test::delayed_update_test
