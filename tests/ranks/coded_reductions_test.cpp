// Gradients that cross shard groups in codes, and what these round off, fed back.
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>

#include "base/half.h"
#include "folder.h"
#include "lm.h"
#include "memory/torch/arena_allocator.h"

namespace zero::test::coded_reductions_test {

// A gradient that is known to each rank: numbers of the rank.
struct Known : torch::nn::Module {
  Known() : weight(register_parameter("weight", torch::ones({1000}))) {}
  at::Tensor loss(std::int64_t index) { return (weight * numbers(index, {1000})).sum(); }
  at::Tensor weight;
};

// Inside a group nothing is rounded, and what a rank has of its own neither: of two groups one sum is, once.
TEST(CodedReductions, RoundOneSumOfTheOtherGroup) {
  on_ranks<Known>({.plan = Plan::zero3().reduce_in(Wire::int4), .ranks = 4, .optimizer = Sgd{.lr = 1}, .shard = 2}, {},
                  [](Known& model, Engine& engine, int) {
                    const at::Tensor before = engine.main_parameter(model.weight).clone();
                    train_step(model, engine);
                    const at::Tensor moved = 4 * (before - engine.main_parameter(model.weight));
                    const auto sum = [](int first) { return numbers(first, {1000}) + numbers(first + 1, {1000}); };
                    const at::Tensor error = (moved - sum(0) - sum(2)).abs();
                    // Largest magnitudes are below 5; of 8 steps each is at most a step off.
                    EXPECT_LT(error.max().item<double>(), 5.0 / 8);
                    EXPECT_GT(error.max().item<double>(), 0.01);
                  });
}

// For the same groups: whatever stage, and however the ranks are joined.
TEST(CodedReductions, HaveTheSameBitsUnderEveryPlan) {
  for (const Wire wire : {Wire::int4, Wire::int8, Wire::fp8})
    for (const auto& [ranks, shard] : {std::pair(4, 2), {6, 2}, {6, 3}, {3, 1}}) {
      const auto run = [&](const Plan& plan) {
        return train<Lm>({.plan = plan.reduce_in(wire), .ranks = ranks, .shard = shard}, lm_with_dropout(0.1));
      };
      const Outcome ddp = run(Plan::ddp());
      for (const Plan& plan : plans_of_meshes()) EXPECT_EQ(difference(ddp, run(plan)), "") << plan.label() << ranks;
    }
}

Plan fed_back(Wire wire = Wire::int4) {
  return Plan::zero3().reduce_in(wire).error_feedback(true);
}

// The same gradient in each step: what is off in the sum of all is one step's, and no more with each.
TEST(ErrorFeedback, SendsWhatWasRoundedOffWithTheNext) {
  constexpr int kSteps = 20;
  const auto worst = [](const Plan& plan, int ranks, int shard) {
    double off = 0;
    on_ranks<Known>({.plan = plan, .ranks = ranks, .optimizer = Sgd{.lr = 1}, .shard = shard}, {},
                    [&](Known& model, Engine& engine, int rank) {
                      const at::Tensor before = engine.main_parameter(model.weight).clone();
                      at::Tensor sum = torch::zeros({1000}, before.options());
                      for (int each = 0; each < ranks; ++each) sum += numbers(each, {1000});
                      for (int step = 0; step < kSteps; ++step) {
                        engine.backward(model.loss(rank));
                        engine.step();
                      }
                      const at::Tensor moved = ranks * (before - engine.main_parameter(model.weight)) / kSteps;
                      if (rank == 0) off = (moved - sum).abs().max().item<double>();
                    });
    return off;
  };
  for (const Wire wire : {Wire::int4, Wire::int4_hadamard, Wire::fp8})
    for (const auto& [ranks, shard] : {std::pair(4, 2), {6, 3}, {3, 1}})
      for (const Plan& plan : {fed_back(wire), Plan::ddp().reduce_in(wire).error_feedback(true)})
        EXPECT_LT(worst(plan, ranks, shard), worst(plan.error_feedback(false), ranks, shard) / 4)
            << name(wire) << plan.label() << ranks;
}

TEST(ErrorFeedback, HasTheSameBitsUnderEveryPlan) {
  for (const Wire wire : {Wire::int4, Wire::int4_hadamard})
    for (const auto& [ranks, shard] : {std::pair(4, 2), {6, 2}, {6, 3}, {3, 1}}) {
      const auto run = [&](const Plan& plan) {
        return train<Lm>({.plan = plan.reduce_in(wire), .ranks = ranks, .shard = shard}, lm_with_dropout(0.1));
      };
      const Outcome ddp = run(Plan::ddp().error_feedback(true));
      for (const Plan& plan : plans_of_meshes())
        EXPECT_EQ(difference(ddp, run(plan.error_feedback(true))), "") << plan.label() << ranks;
      EXPECT_NE(difference(ddp, run(Plan::ddp())), "");
    }
}

// Whatever was in the memory that errors come to. Of other groups than those that saved there are none.
TEST(ErrorFeedback, GoesOnInANewEngine) {
  for (const Plan& plan :
       {fed_back(), fed_back(Wire::int4_hadamard).bf16().accumulate(2), Plan::sdp4bit().bf16().error_feedback(true),
        Plan::hybrid().reduce_in(Wire::int8).error_feedback(true)}) {
    const Folder folder;
    const auto trained = [&](const Plan& by, int shard, const std::function<void(Lm&, Engine&)>& begin) {
      return train_by({.plan = by, .ranks = 4, .shard = shard}, lm_with_dropout(0.1),
                      [&](Lm& model, Engine& engine, Outcome& run, int) {
                        begin(model, engine);
                        for (int step = 0; step < 3; ++step) run.record(train_step(model, engine));
                      });
    };
    const Outcome uninterrupted = trained(plan, 2, [&](Lm& model, Engine& engine) {
      for (int step = 0; step < 2; ++step) train_step(model, engine);
      engine.save(folder.path());
    });
    const auto load = [&](Lm&, Engine& engine) { engine.load(folder.path()); };
    const auto behind_others = [&](Lm& model, Engine& engine) {
      train_step(model, engine);
      engine.load(folder.path());
    };
    fill_new_memory(0xff);  // NaN of every type
    EXPECT_EQ(difference(uninterrupted, trained(plan, 2, load)), "") << plan.label();
    EXPECT_EQ(difference(uninterrupted, trained(plan, 2, behind_others)), "") << plan.label();
    const Outcome four = trained(plan, 1, load), anew = trained(plan, 1, behind_others);
    fill_new_memory(std::nullopt);
    EXPECT_EQ(difference(four, anew), "") << "in four groups they begin anew: " << plan.label();
    EXPECT_NE(difference(uninterrupted, trained(plan.error_feedback(false), 2, load)), "") << plan.label();
  }
}

// Errors are told without the scale that they were made with.
TEST(ErrorFeedback, GoesOnWithAnotherLossScale) {
  const auto norm = [](double scale, const std::function<void(Known&, Engine&, int rank)>& begin) {
    std::array<double, 2> sums{};
    Job job{.plan = fed_back(), .ranks = 4, .optimizer = Sgd{.lr = 1e-3}, .shard = 2};
    job.options.loss_scale = LossScale::fixed(scale);
    on_ranks<Known>(job, {}, [&](Known& model, Engine& engine, int rank) {
      begin(model, engine, rank);
      const EngineState state = engine.state();
      for (const StatePiece& piece : state.pieces())
        if (state.tensors()[piece.tensor()].key.kind == StateKind::error)
          piece.read([&](std::int64_t first, std::int64_t end, const void* values) {
            if (rank != 0) return;
            for (std::int64_t i = 0; i < end - first; ++i) {
              sums[0] += widen(static_cast<const Bf16*>(values)[i]);
              sums[1] += std::abs(widen(static_cast<const Bf16*>(values)[i]));
            }
          });
    });
    return sums;
  };
  const Folder folder;
  const auto saved = norm(1024, [&](Known& model, Engine& engine, int rank) {
    engine.backward(model.loss(rank));
    engine.step();
    engine.save(folder.path());
  });
  EXPECT_GT(saved[1], 0);
  EXPECT_EQ(saved, norm(1, [&](Known& model, Engine& engine, int rank) {
              engine.backward(model.loss(rank));
              engine.step();
            }));
  EXPECT_EQ(saved, norm(1, [&](Known&, Engine& engine, int) { engine.load(folder.path()); }));
  EXPECT_EQ(saved, norm(1024, [&](Known&, Engine& engine, int) { engine.load(folder.path()); }));
}

// Sums over more of them are larger.
TEST(ErrorFeedback, BeginsAnewWithOtherMicroBatches) {
  const Folder folder;
  const auto errors = [](Engine& engine) {
    const EngineState state = engine.state();
    return std::ranges::count_if(state.tensors(), [](const auto& each) { return each.key.kind == StateKind::error; });
  };
  on_ranks<Known>({.plan = fed_back().accumulate(2), .ranks = 4, .shard = 2}, {},
                  [&](Known& model, Engine& engine, int) {
                    train_step(model, engine);
                    engine.save(folder.path());
                  });
  for (const int micro_batches : {1, 2})
    on_ranks<Known>({.plan = fed_back().accumulate(micro_batches), .ranks = 4, .shard = 2}, {},
                    [&](Known&, Engine& engine, int) {
                      engine.load(folder.path());
                      EXPECT_EQ(errors(engine), micro_batches == 2 ? 2 : 0);
                    });
}

TEST(ErrorFeedback, IsNoLongerToldBehindABackward) {
  on_ranks<Known>({.plan = fed_back(), .ranks = 4, .shard = 2}, {}, [](Known& model, Engine& engine, int rank) {
    const EngineState state = engine.state();
    engine.backward(model.loss(rank));
    for (const StatePiece& piece : state.pieces())
      EXPECT_THROW(piece.read([](std::int64_t, std::int64_t, const void*) {}), StateError);
    engine.step();
  });
}

// Of each group what it keeps, and zeros of what does not cross.
TEST(ErrorFeedback, IsStateOfEachGroup) {
  std::array<std::vector<float>, 2> whole{std::vector<float>(1000, -1), std::vector<float>(1000, -1)};
  std::mutex lock;
  on_ranks<Known>({.plan = fed_back(), .ranks = 4, .shard = 2}, {}, [&](Known& model, Engine& engine, int rank) {
    const auto errors = [&] {
      std::vector<StateTensor> all;
      const EngineState state = engine.state();
      for (const StateTensor& each : state.tensors())
        if (each.key.kind == StateKind::error) all.push_back(each);
      return all;
    };
    EXPECT_TRUE(errors().empty()) << "nothing has been rounded yet";
    engine.backward(model.loss(rank));
    engine.step();
    ASSERT_EQ(errors().size(), 2U);
    EXPECT_EQ(describe(errors()[1]), "bf16 [1000]");
    const EngineState state = engine.state();
    for (const StatePiece& piece : state.pieces()) {
      const StateKey& key = state.tensors()[piece.tensor()].key;
      if (key.kind != StateKind::error) continue;
      EXPECT_EQ(key.part, std::to_string(rank / 2) + " of 2 x 2 x 1");
      piece.read([&](std::int64_t begin, std::int64_t end, const void* values) {
        const std::lock_guard locked(lock);
        for (std::int64_t i = begin; i < end; ++i)
          whole[static_cast<std::size_t>(rank) / 2][static_cast<std::size_t>(i)] =
              widen(static_cast<const Bf16*>(values)[i - begin]);
      });
    }
  });
  for (const auto& [group, its] : {std::pair(0, whole[0]), {1, whole[1]}}) {
    EXPECT_EQ(std::ranges::count(its, -1), 0) << "each element is told";
    EXPECT_GT(std::ranges::count(its, 0), 400) << group;
    EXPECT_LT(std::ranges::count(its, 0), 600) << group;
    EXPECT_LT(std::ranges::max(its), 5.0 / 8);
  }
}

// All of them are zeros.
bool begun_anew(Engine& engine) {
  bool anew = true;
  const EngineState state = engine.state();
  for (const StatePiece& piece : state.pieces())
    if (state.tensors()[piece.tensor()].key.kind == StateKind::error)
      piece.read([&](std::int64_t begin, std::int64_t end, const void* values) {
        for (std::int64_t i = 0; i < end - begin; ++i) anew = anew && widen(static_cast<const Bf16*>(values)[i]) == 0;
      });
  return anew;
}

TEST(ErrorFeedback, BeginsAnewWhereAStepIsSkippedAndEveryThousandSteps) {
  on_ranks<Known>({.plan = fed_back(), .ranks = 4, .optimizer = Sgd{.lr = 1e-3}, .shard = 2}, {},
                  [](Known& model, Engine& engine, int rank) {
                    const auto step = [&](float factor) {
                      engine.backward(model.loss(rank) * factor);
                      return engine.step();
                    };
                    EXPECT_TRUE(step(1).applied);
                    EXPECT_FALSE(begun_anew(engine));
                    EXPECT_TRUE(step(rank == 3 ? std::numeric_limits<float>::infinity() : 1).skipped);
                    EXPECT_TRUE(begun_anew(engine));
                    for (int applied = 1; applied < Plan::kErrorSteps; ++applied) {
                      EXPECT_TRUE(step(1).applied);
                      if (applied % 500 != 0) continue;
                      EXPECT_FALSE(begun_anew(engine)) << applied;
                    }
                    EXPECT_TRUE(begun_anew(engine));
                  });
}

TEST(ErrorFeedback, BeginsAnewWithAnotherLossScale) {
  const Plan plan = Plan::zero3().precision(Precision::fp16).reduce_in(Wire::int4).error_feedback(true);
  Job job{.plan = plan, .ranks = 4, .shard = 2};
  job.options.loss_scale = LossScale{.initial = 64, .window = 3};
  on_ranks<Known>(job, {}, [](Known& model, Engine& engine, int rank) {
    for (int step = 1; step < 8; ++step) {
      engine.backward(model.loss(rank));
      EXPECT_TRUE(engine.step().applied);
      EXPECT_EQ(begun_anew(engine), step % 3 == 0) << step;
    }
  });
}

TEST(ErrorFeedback, IsRefusedWhereNothingIsCoded) {
  EXPECT_TRUE(says(thrown_by([] {
                     on_ranks<Lm>({.plan = Plan::zero3().error_feedback(true), .ranks = 4, .shard = 2}, {},
                                  [](Lm&, Engine&, int) {});
                   }),
                   {"error feedback is of gradients", "their own dtype", "int4"}));
}

// Where there is one group, nothing crosses.
TEST(CodedReductions, RoundNothingInOneGroup) {
  const auto run = [&](const Plan& plan) { return train<Lm>({.plan = plan, .ranks = 4}, lm_with_dropout(0.1)); };
  EXPECT_EQ(difference(run(Plan::zero3()), run(Plan::zero3().reduce_in(Wire::int4))), "");
}

TEST(CodedReductions, LetOverflowsBeSeen) {
  on_ranks<Known>({.plan = Plan::zero3().reduce_in(Wire::int4), .ranks = 4, .shard = 2}, {},
                  [](Known& model, Engine& engine, int rank) {
                    const float factor = rank == 3 ? std::numeric_limits<float>::infinity() : 1;
                    engine.backward(model.loss(rank) * factor);
                    EXPECT_TRUE(engine.step().skipped);
                  });
}

}  // namespace zero::test::coded_reductions_test
