// Engines that move: from one variable to another, in vectors that grow and shrink, over one that ends by it.
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>

#include "familiar.h"
#include "zero/error.h"
#include "zero/memory_analyzer.h"

namespace zero::test::moved_engines_test {

// Moves wherever a step may be, and back into the engine that the caller has.
void train_moving(Net& net, Engine& given, Outcome& run, int steps) {
  Engine engine(std::move(given));
  for (int step = 0; step < steps; ++step) {
    for (int micro = 0; micro < engine.plan().accumulate(); ++micro) {
      const at::Tensor loss = net.loss(engine.micro_batch());
      Engine between_forward_and_backward(std::move(engine));
      between_forward_and_backward.backward(loss);
      engine = std::move(between_forward_and_backward);
    }
    Engine before_the_step(std::move(engine));
    run.record(before_the_step.step());
    engine = std::move(before_the_step);
  }
  given = std::move(engine);
}

TEST(MovedEngines, TrainOnWithTheSameBits) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    for (const int ranks : {1, 2}) {
      Job base = kJob;
      base.ranks = ranks;
      base.plan = Plan::ddp().precision(precision).accumulate(2);
      under_every_plan(base, [](const Job& job) {
        const Outcome moved = train_by<Net>(
            job, {}, [&](Net& net, Engine& engine, Outcome& run, int) { train_moving(net, engine, run, job.steps); });
        EXPECT_EQ(difference(train<Net>(job), moved), "");
      });
    }
}

constexpr int kMembers = 5;
using Values = std::map<std::string, at::Tensor>;

// Members join one by one while those that are there train on, and the first two leave.
template <class Join, class Leave>
std::vector<Values> train_ensemble(const std::vector<std::unique_ptr<Net>>& nets, const Join& join,
                                   const Leave& leave) {
  std::vector<Engine*> engines;
  const auto step = [&](std::size_t first) {
    for (std::size_t i = first; i < engines.size(); ++i) train_step(*nets[i], *engines[i]);
  };
  for (int i = 0; i < kMembers; ++i) {
    engines = join(i);
    step(0);
  }
  engines = leave();
  step(2);
  std::vector<Values> values;
  for (std::size_t i = 2; i < engines.size(); ++i) values.push_back(parameters_of(*nets[i], *engines[i]));
  return values;
}

std::vector<std::unique_ptr<Net>> members() {
  std::vector<std::unique_ptr<Net>> nets;
  for (int i = 0; i < kMembers; ++i) {
    nets.push_back(std::make_unique<Net>());
    initialise(*nets.back(), kSeed + 100 * i);
  }
  return nets;
}

std::vector<Values> in_place(const World& world, const Job& job) {
  const auto nets = members();
  std::vector<std::unique_ptr<Engine>> engines;
  const auto all = [&] {
    std::vector<Engine*> each;
    for (const auto& engine : engines) each.push_back(engine.get());
    return each;
  };
  return train_ensemble(
      nets,
      [&](int i) {
        engines.push_back(std::make_unique<Engine>(*nets[static_cast<std::size_t>(i)], world, job.plan, job.optimizer));
        return all();
      },
      [&] {
        engines[0].reset();
        engines[1].reset();
        return all();
      });
}

std::vector<Values> in_a_vector(const World& world, const Job& job) {
  const auto nets = members();
  std::vector<Engine> engines;
  const auto all = [&](std::size_t gone) {
    std::vector<Engine*> each(gone);
    for (Engine& engine : engines) each.push_back(&engine);
    return each;
  };
  return train_ensemble(
      nets,
      [&](int i) {
        engines.emplace_back(*nets[static_cast<std::size_t>(i)], world, job.plan, job.optimizer);
        return all(0);
      },
      [&] {
        engines.erase(engines.begin(), engines.begin() + 2);
        return all(2);
      });
}

TEST(MovedEngines, LiveInAVectorThatGrowsAndShrinks) {
  static_assert(std::is_nothrow_move_constructible_v<Engine> && std::is_nothrow_move_assignable_v<Engine>);
  under_every_plan(kJob, [](const Job& job) {
    run_ranks(job.ranks, [&](const World& world) {
      const std::vector<Values> expected = in_place(world, job), values = in_a_vector(world, job);
      ASSERT_EQ(values.size(), kMembers - 2);
      for (std::size_t i = 0; i < values.size(); ++i)
        for (const auto& [name, value] : expected[i]) EXPECT_TRUE(value.equal(values[i].at(name))) << i << name;
    });
  });
}

TEST(MovedEngines, SayThatTheyWereMovedFrom) {
  on_ranks<Net>(kJob, {}, [](Net& net, Engine& given, int) {
    Engine engine(std::move(given));
    for (const std::function<void()>& call : std::vector<std::function<void()>>{
             [&] { given.step(); }, [&] { static_cast<void>(given.plan()); }, [&] { given.backward(net.loss(0)); },
             [&] { static_cast<void>(given.save("nowhere")); }, [&] { given.discard(); }}) {
      EXPECT_THROW(call(), StateError);
      EXPECT_TRUE(says(thrown_by(call), {"was moved from", "call the one"}));
    }
    engine.discard();
    given = std::move(engine);
    EXPECT_TRUE(train_step(net, given).applied);
  });
}

// The one that is assigned to leaves its module as an engine does that ends.
TEST(MovedEngines, EndWhatTheyAreAssignedTo) {
  under_every_plan(kJob, [](const Job& job) {
    run_ranks(job.ranks, [&](const World& world) {
      Net first, second;
      initialise(first, kSeed);
      initialise(second, kSeed);
      Engine engine(first, world, job.plan, job.optimizer);
      train_step(first, engine);
      engine = Engine(second, world, job.plan, job.optimizer);
      EXPECT_EQ(engine.steps(), 0);
      const std::string fault = thrown_by([&] { first.loss(0).backward(); });
      if (job.plan[State::parameter].rest.shard == Placement::sharded) {
        EXPECT_TRUE(says(fault, {"engine.release()"}));
      } else {
        EXPECT_EQ(fault, "");
      }
      EXPECT_TRUE(train_step(second, engine).applied);
      Engine& itself = engine;
      engine = std::move(itself);
      EXPECT_TRUE(train_step(second, engine).applied);
    });
  });
}

TEST(MovedEngines, KeepTheirOptimizerAndReports) {
  under_every_plan(kJob, [](const Job& job) {
    on_ranks<Net>(job, {}, [](Net& net, Engine& given, int) {
      torch::optim::Optimizer& optimizer = given.optimizer();
      torch::optim::StepLR schedule(optimizer, 1, 0.5);
      const StepReport& last = given.last_step();
      Engine engine(std::move(given));
      EXPECT_EQ(&optimizer, &engine.optimizer());
      for (int step = 1; step <= 3; ++step) {
        optimizer.zero_grad();
        net.loss(engine.micro_batch()).backward();
        optimizer.step();
        schedule.step();
        EXPECT_EQ(last.step, step);
        EXPECT_EQ(&last, &engine.last_step());
      }
      EXPECT_LT(last.lr, 0.1);
      given = std::move(engine);
    });
  });
}

// What was written in a scope that was open while the engine moved is kept, and the engine trains on from it.
TEST(MovedEngines, KeepTheirGatherScopes) {
  under_every_plan(kJob, [](const Job& job) {
    on_ranks<Net>(job, {}, [](Net& net, Engine& given, int) {
      Engine engine(std::move(given));
      {
        const auto whole = gather(net.parameters());
        const at::NoGradGuard no_grad;
        net.body->weight.fill_(0.25);
        given = std::move(engine);
        EXPECT_THROW(given.release(), StateError);
        net.body->bias.fill_(0.5);
      }
      EXPECT_TRUE(given.main_parameter(net.body->weight).eq(0.25).all().item<bool>());
      EXPECT_TRUE(given.main_parameter(net.body->bias).eq(0.5).all().item<bool>());
      EXPECT_TRUE(train_step(net, given).applied);
    });
  });
}

TEST(MovedEngines, AreWatchedOn) {
  under_every_plan(kJob, [](const Job& job) {
    on_ranks<Net>(job, {}, [](Net& net, Engine& given, int) {
      MemoryAnalyzer analyzer(device_of_rank());
      analyzer.watch(given);
      Engine engine(std::move(given));
      train_step(net, engine);
      static_cast<void>(engine.traffic());  // nothing is on its way any more
      const MemoryRecord record = analyzer.record("moved");
      EXPECT_EQ(of(record.owners, MemoryOwner::parameter), engine.ledger()[Owner::parameter].bytes);
      EXPECT_EQ(of(record.owners, MemoryOwner::optimizer), engine.ledger()[Owner::optimizer].bytes);
      const MemoryReport report = analyzer.report();
      EXPECT_TRUE(std::ranges::any_of(
          report.phases, [](const MemoryPhase& phase) { return phase.name == "step" && phase.count == 1; }));
      given = std::move(engine);
    });
  });
}

}  // namespace zero::test::moved_engines_test
