// Bytes within a host, across hosts and in common memory, against the estimate: to the byte, by collective.
#include <torch/torch.h>

#include "lm.h"
#include "traffic_text.h"

namespace zero::test::links_test {

// Calls check(engine) on every rank after a step like those that follow it, which has moved what was estimated.
template <class Check>
void expect_moved_as_estimated(const Job& job, const Check& check) {
  SCOPED_TRACE(describe(job) + ", " + std::to_string(job.ranks_per_host) + " a host");
  on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int rank) {
    SCOPED_TRACE(rank);
    for (int step = 0; step < 2; ++step) train_step(model, engine);
    engine.reset_traffic();
    train_step(model, engine);
    const Traffic measured = engine.traffic(), predicted = engine.estimate().wire;
    EXPECT_TRUE(measured == predicted) << "measured " << text_of(measured) << "\npredicted " << text_of(predicted);
    check(engine);
  });
}

// Of three slices that a rank of 2x2 gets, one comes from the other host over two levels, two over one.
TEST(Links, AGatherCrossesOnceAHostOverTwoLevelsAndOnceARankOverOne) {
  std::int64_t crossed = 0, within = 0;
  bool two_levels = false;
  run_ranks(
      4,
      [&](const World& world) {
        Lm model;
        Engine engine(model, world, Plan::zero3(), AdamW{});
        train_step(model, engine);
        engine.reset_traffic();
        train_step(model, engine);
        const Traffic::Entry gathers = engine.traffic()[Collective::all_gather];
        if (world.rank() != 0) return;
        crossed = gathers.across_hosts;
        within = gathers.within_host();
        two_levels = world.communicator().topology().two_levels;
      },
      std::chrono::hours(1), 2);
  EXPECT_EQ(within, two_levels ? 2 * crossed : crossed / 2);
}

TEST(Links, CommonMemorySparesTheGathersOfWhatIsShardedAndNothingElse) {
  for (const Plan& plan : all_plans()) {
    SCOPED_TRACE(plan.label());
    expect_moved_as_estimated({plan, 3}, [&](const Engine& engine) {
      const bool spares = engine.memory() == Memory::common && plan.label() == "zero3";
      const Traffic traffic = engine.traffic();
      EXPECT_EQ(traffic.in_place() > 0, spares);
      EXPECT_EQ(traffic.in_place(), traffic[Collective::all_gather].in_place);
      const std::int64_t once = engine.layout().length() * 4 / 3 * 2;  // of the two other ranks
      if (spares) {
        EXPECT_GE(traffic.in_place(), once);
      }
    });
  }
}

}  // namespace zero::test::links_test
