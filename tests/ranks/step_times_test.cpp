// Where a step's time went, by StepReport.
#include <torch/torch.h>

#include <chrono>
#include <limits>
#include <utility>

#include "lm.h"

namespace zero::test::step_times_test {

// What a rank spent inside collectives of a kind, on the exchange's thread. To ask waits for what is on its way.
double inside(const Engine& engine, Collective collective) {
  return engine.traffic()[collective].seconds;
}

double waited(const StepReport& report) {
  return report.gather_seconds + report.reduce_seconds + report.vote_seconds;
}

// The parts of a step are parts of it, and the vote is no shorter than what happens in it.
TEST(StepTimes, ArePartsOfTheStep) {
  under_every_plan({}, [](const Job& job) {
    on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
      const Plan& plan = engine.plan();
      const bool gathers_at_the_end = plan[State::optimizer].rest != plan[State::parameter].rest;
      auto last = std::chrono::steady_clock::now();  // the end of the step before, from which on waiting counts
      for (int step = 0; step < 4; ++step) {
        engine.backward(model.loss(engine.micro_batch()));
        const double before = inside(engine, Collective::all_gather);
        const StepReport report = engine.step();
        const auto now = std::chrono::steady_clock::now();
        const std::chrono::duration<double> took = now - std::exchange(last, now);
        const double voting = inside(engine, Collective::all_gather) - before;
        EXPECT_LE(waited(report) + report.update_seconds, took.count());
        EXPECT_GT(voting, 0);
        // Elsewhere more is gathered or announced in step() than the vote.
        if (gathers_at_the_end || plan[State::parameter].rest.shard == Placement::sharded) continue;
        EXPECT_GE(report.vote_seconds, voting);
        EXPECT_EQ(report.gather_seconds, 0) << "nothing is gathered";
      }
    });
  });
}

TEST(StepTimes, OfAStepThatUpdatesNothingAreNone) {
  under_every_plan({.plan = Plan::ddp().accumulate(2)}, [](const Job& job) {
    on_ranks<Lm>(job, {}, [](Lm& model, Engine& engine, int) {
      engine.backward(model.loss(engine.micro_batch()));
      const StepReport early = engine.step();
      EXPECT_EQ(waited(early) + early.update_seconds, 0);
      engine.backward(model.loss(engine.micro_batch()) * std::numeric_limits<double>::infinity());
      const StepReport skipped = engine.step();
      EXPECT_TRUE(skipped.skipped);
      EXPECT_EQ(skipped.update_seconds, 0);
      EXPECT_GT(skipped.vote_seconds, 0);
    });
  });
}

// What optimizers over whole tensors exchange is the update's. Their steps are added up by reduce-scatters; gathers are
// announcements too, of which that of the barrier after an update is nobody's to wait for.
TEST(StepTimes, OfAnUpdateHaveWhatItExchanges) {
  on_ranks<Lm>({.plan = Plan::zero3(), .optimizer = Muon{}}, {}, [](Lm& model, Engine& engine, int) {
    engine.backward(model.loss(engine.micro_batch()));
    const Traffic before = engine.traffic();
    const StepReport report = engine.step();
    const Traffic after = engine.traffic();
    double exchanging = 0;
    std::int64_t calls = 0;
    for (const Collective each : {Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all}) {
      if (each != Collective::all_gather) exchanging += after[each].seconds - before[each].seconds;
      calls += after[each].calls - before[each].calls;
    }
    EXPECT_GT(calls, 2) << "more than the vote and its announcement";
    EXPECT_GT(exchanging, 0);
    EXPECT_GE(report.update_seconds, exchanging);
  });
}

}  // namespace zero::test::step_times_test
