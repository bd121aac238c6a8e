// The analyzer on an engine: beside the engine's own ledger.
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "activation_trials.h"
#include "lm.h"
#include "memory/torch/arena_allocator.h"
#include "zero/memory_analyzer.h"

namespace zero::test::memory_analyzer_engine_test {

std::int64_t sum(const OwnedBytes& owners) {
  return std::accumulate(owners.begin(), owners.end(), std::int64_t{0});
}

void expect_as_ledger(MemoryAnalyzer& analyzer, Engine& engine, const std::string& moment) {
  SCOPED_TRACE(moment);
  static_cast<void>(engine.traffic());  // nothing is on its way any more
  const MemoryRecord record = analyzer.record(moment);
  const Ledger ledger = engine.ledger();
  EXPECT_EQ(of(record.owners, MemoryOwner::parameter), ledger[Owner::parameter].bytes);
  EXPECT_EQ(of(record.owners, MemoryOwner::gradient), ledger[Owner::gradient].bytes);
  EXPECT_EQ(of(record.owners, MemoryOwner::optimizer), ledger[Owner::optimizer].bytes);
  EXPECT_EQ(of(record.owners, MemoryOwner::communication),
            ledger[Owner::gathered].bytes + ledger[Owner::reduction].bytes + ledger[Owner::update].bytes);
  EXPECT_EQ(sum(record.owners), record.allocated);
}

void expect_as_ledger_through_steps(const Job& job) {
  on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
    MemoryAnalyzer analyzer(device_of_rank());
    analyzer.watch(engine);
    expect_as_ledger(analyzer, engine, "begin");
    for (int step = 0; step < job.steps; ++step) {
      for (int micro = 0; micro < job.plan.accumulate(); ++micro) {
        at::Tensor loss = model.loss(engine.micro_batch());
        expect_as_ledger(analyzer, engine, "forward");
        engine.backward(loss);
        loss = at::Tensor();
        expect_as_ledger(analyzer, engine, "backward");
      }
      engine.step();
      expect_as_ledger(analyzer, engine, "step");
    }
    EXPECT_EQ(sum(analyzer.report().peak.owners), analyzer.report().peak.bytes);
  });
}

TEST(MemoryAnalyzerOfAnEngine, HoldsWhatTheLedgerHoldsUnderEveryPlan) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    under_every_plan({.plan = Plan::ddp().precision(precision).accumulate(2)}, expect_as_ledger_through_steps);
}

TEST(MemoryAnalyzerOfAnEngine, HoldsWhatTheLedgerHoldsOfOptimizersOverWholeTensors) {
  under_every_plan({.optimizer = Adafactor{}}, expect_as_ledger_through_steps);
}

// What LibTorch's optimizers keep comes by LibTorch's allocator, and is counted once.
TEST(MemoryAnalyzerOfAnEngine, HoldsWhatTheLedgerHoldsOfLibTorchsOptimizers) {
  use_arena();
  const auto make = [](std::vector<at::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::Adam>(std::move(parameters), torch::optim::AdamOptions(1e-3));
  };
  under_every_plan({.optimizer = TorchOptimizer{.make = make, .label = "adam"}}, expect_as_ledger_through_steps);
}

// Also where the engine is watched only after the optimizer has allocated under the analyzer's eyes.
TEST(MemoryAnalyzerOfAnEngine, CountsLibTorchsOptimizersOnceWhenWatchedLate) {
  use_arena();
  const auto make = [](std::vector<at::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::Adam>(std::move(parameters), torch::optim::AdamOptions(1e-3));
  };
  const Job job{.optimizer = TorchOptimizer{.make = make, .label = "adam"}};
  on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
    MemoryAnalyzer analyzer(device_of_rank());
    train_step(model, engine);
    const std::int64_t seen = analyzer.report().peak.bytes;
    analyzer.watch(engine);
    expect_as_ledger(analyzer, engine, "watched");
    const MemoryRecord record = analyzer.record("held");
    EXPECT_LE(analyzer.report().peak.bytes, std::max(seen, record.allocated));
    EXPECT_LT(of(record.owners, MemoryOwner::activation) + of(record.owners, MemoryOwner::temporary),
              of(record.owners, MemoryOwner::optimizer))
        << "what the optimizer keeps is another's as well";
  });
}

TEST(MemoryAnalyzerOfAnEngine, WhatIsReservedHoldsWhatIsAllocated) {
  under_every_plan({}, [](const Job& job) {
    on_ranks<Lm>(job, {}, [](Lm& model, Engine& engine, int) {
      MemoryAnalyzer analyzer(device_of_rank());
      analyzer.watch(engine);
      train_step(model, engine);
      const MemoryRecord record = analyzer.record("step");
      EXPECT_GT(record.allocated, 0);
      EXPECT_GE(record.reserved, record.allocated);
    });
  });
}

TEST(MemoryAnalyzerOfAnEngine, CountsOneRankAlone) {
  under_every_plan({.ranks = 1}, expect_as_ledger_through_steps);
}

using Ends = std::pair<double, double>;

// From the first activity's begin to the last's end.
Ends extent(const MemoryReport& report, const std::string& name) {
  Ends ends{1e9, -1};
  for (const MemoryActivity& activity : report.activities) {
    if (activity.name != name) continue;
    ends = {std::min(ends.first, activity.begin), std::max(ends.second, activity.end)};
  }
  return ends;
}

std::int64_t times(const MemoryReport& report, const std::string& name) {
  const auto found = std::ranges::find(report.phases, name, &MemoryPhase::name);
  return found == report.phases.end() ? 0 : found->count;
}

void expect_phases(const Job& job) {
  on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
    MemoryAnalyzer analyzer(device_of_rank());
    analyzer.watch(engine);
    train_step(model, engine);
    static_cast<void>(engine.traffic());
    const MemoryReport report = analyzer.report();
    const Ends forward = extent(report, "forward"), backward = extent(report, "backward"),
               step = extent(report, "step"), vote = extent(report, "vote"), reduce = extent(report, "reduce");
    EXPECT_EQ(times(report, "forward"), 1);
    EXPECT_EQ(times(report, "backward"), 1);
    EXPECT_EQ(times(report, "step"), 1);
    EXPECT_EQ(times(report, "vote"), 1);
    EXPECT_GT(times(report, "reduce"), 0);
    EXPECT_LE(forward.second, backward.first);
    EXPECT_LE(backward.second, step.first);
    EXPECT_GE(vote.first, step.first);
    EXPECT_LE(vote.second, step.second);
    EXPECT_GE(reduce.first, backward.first);
    EXPECT_LE(reduce.second, backward.second);
    EXPECT_EQ(times(report, "gather") > 0, job.plan[State::parameter].rest.shard == Placement::sharded);
    for (const MemoryPhase& phase : report.phases) EXPECT_GE(phase.peak, phase.allocated) << phase.name;
  });
}

TEST(MemoryAnalyzerOfAnEngine, PhasesAppearInOrder) {
  under_every_plan({}, expect_phases);
}

TEST(MemoryAnalyzerOfAnEngine, GathersAndPublicationsHaveTheirUnits) {
  const auto units_of = [](const Plan& plan, const std::string& name) {
    std::map<std::string, int> units;
    on_ranks<Lm>({.plan = plan}, {}, [&](Lm& model, Engine& engine, int rank) {
      MemoryAnalyzer analyzer(device_of_rank());
      analyzer.watch(engine);
      train_step(model, engine);
      static_cast<void>(engine.traffic());
      if (rank != 0) return;
      for (const MemoryActivity& activity : analyzer.report().activities)
        if (activity.name == name) ++units[activity.unit];
    });
    return units;
  };
  EXPECT_TRUE(units_of(Plan::zero3(), "gather").contains("blocks.1"));
  EXPECT_TRUE(units_of(Plan::zero1(), "publish").contains("blocks.1"));
  EXPECT_TRUE(units_of(Plan::zero2(), "reduce").contains("blocks.1"));
}

// Within backwards, but for what a forward cannot keep.
TEST(MemoryAnalyzerOfAnEngine, WhatActivationsCostIsToldAsItHappens) {
  const Trials trials;
  on_ranks<Lm>({.plan = Plan::zero3().activation_budget({.share = .4})}, {}, [](Lm& model, Engine& engine, int) {
    for (int i = 0; i < 2; ++i) train_step(model, engine);
    MemoryAnalyzer analyzer(device_of_rank());
    analyzer.watch(engine);
    train_step(model, engine);
    const MemoryReport report = analyzer.report();
    EXPECT_GT(times(report, "recompute"), 0);
    EXPECT_EQ(times(report, "recompute"), engine.activations().recomputations);
    EXPECT_EQ(times(report, "fetch"), 0);
    const Ends forward = extent(report, "forward"), backward = extent(report, "backward"),
               again = extent(report, "recompute");
    EXPECT_GE(again.first, forward.first);
    EXPECT_LE(again.second, backward.second);
  });
}

TEST(MemoryAnalyzerOfAnEngine, ParametersAreOfTheirUnits) {
  on_ranks<Lm>({.plan = Plan::ddp()}, {}, [](Lm&, Engine& engine, int) {
    MemoryAnalyzer analyzer(device_of_rank());
    analyzer.watch(engine);
    std::map<std::string, std::int64_t> units;
    for (const MemoryShare& share : analyzer.report().peak.units) units[share.name] = share.bytes;
    for (const UnitLayout& unit : engine.layout().units()) EXPECT_GE(units[unit.name()], unit.bytes()) << unit.name();
  });
}

TEST(MemoryAnalyzerOfAnEngine, ActivationsComeInForwardAndGoInBackward) {
  on_ranks<Lm>({.plan = Plan::zero3()}, {}, [](Lm& model, Engine& engine, int) {
    MemoryAnalyzer analyzer(device_of_rank());
    analyzer.watch(engine);
    analyzer.watch(model);  // its parameters are the engine's
    const std::int64_t before = analyzer.record("begin").allocated;
    EXPECT_EQ(before, engine.ledger().held());
    at::Tensor loss = model.loss(0);
    const MemoryRecord forward = analyzer.record("forward");
    EXPECT_GT(of(forward.owners, MemoryOwner::activation), 1000);
    engine.backward(loss);
    loss = at::Tensor();
    const MemoryRecord backward = analyzer.record("backward");
    EXPECT_EQ(of(backward.owners, MemoryOwner::activation), 0);
  });
}

TEST(MemoryAnalyzerOfAnEngine, EitherMayEndFirst) {
  on_ranks<Lm>({.plan = Plan::zero2()}, {}, [](Lm& model, Engine& engine, int) {
    for (int i = 0; i < 2; ++i) {
      MemoryAnalyzer analyzer(device_of_rank());
      analyzer.watch(engine);
      const at::Tensor loss = model.loss(engine.micro_batch());
      if (i == 1) engine.backward(loss);
    }
    train_step(model, engine);
  });
  run_ranks(2, [](const World& world) {
    MemoryAnalyzer analyzer(device_of_rank());
    Lm model;
    model.to(device_of_rank());
    {
      Engine engine(model, world, Plan::zero3(), AdamW{});
      analyzer.watch(engine);
      train_step(model, engine);
    }
    const OwnedBytes after = analyzer.record("the engine is gone").owners;
    EXPECT_EQ(of(after, MemoryOwner::parameter), 0);
    EXPECT_EQ(of(after, MemoryOwner::gradient), 0);
    EXPECT_EQ(of(after, MemoryOwner::optimizer), 0);
    EXPECT_EQ(of(after, MemoryOwner::communication), 0);
  });
}

TEST(MemoryAnalyzerOfAnEngine, ChangesNoBits) {
  const Job job{.plan = Plan::zero3()};
  const Outcome without = train<Lm>(job);
  const Outcome with = train_by<Lm>(job, {}, [&](Lm& model, Engine& engine, Outcome& run, int) {
    MemoryAnalyzer analyzer(device_of_rank());
    analyzer.watch(engine);
    for (int step = 0; step < job.steps; ++step) run.record(train_step(model, engine));
  });
  EXPECT_EQ(difference(without, with), "");
}

}  // namespace zero::test::memory_analyzer_engine_test
