// Bytes within a host, across hosts and in common memory, against the estimate: to the byte, by collective.
#include <torch/torch.h>

#include "covering.h"
#include "lm.h"
#include "traffic_text.h"

namespace zero::test::links_test {

struct HostShape {
  int hosts;
  int ranks_per_host;
};

void PrintTo(const HostShape& shape, std::ostream* out) {
  *out << shape.hosts << "x" << shape.ranks_per_host;
}

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

// Rows of every kind: of whole tensors, FP8 on the wire, sums of micro-batches in any order.
Plan variant(const Plan& plan, int kind) {
  switch (kind) {
    case 1: return plan.reproducible(true).accumulate(2);
    case 2: return plan.accumulate(3).reduce_in(Dtype::bf16);
    case 3: return plan.label() == "zero3" ? plan.gather_in(Wire::fp8) : plan;
    default: return plan;
  }
}

// Hosts and ranks of each, precision, plan, which variant of it, and optimizer.
class Links : public testing::TestWithParam<std::tuple<HostShape, Precision, Plan, int, int>> {};

TEST_P(Links, CarryWhatIsEstimated) {
  const auto& [shape, precision, plan, kind, which] = GetParam();
  const int ranks = shape.hosts * shape.ranks_per_host;
  Job job{variant(plan.precision(precision), kind), ranks};
  if (which == 1) job.optimizer = Muon{};
  job.ranks_per_host = shape.ranks_per_host;
  const bool several = shape.hosts > 1;
  expect_moved_as_estimated(job, [&](const Engine& engine) {
    const Traffic traffic = engine.traffic();
    EXPECT_EQ(traffic.across_hosts() > 0, several);
    EXPECT_GT(traffic.within_host(), 0);
    EXPECT_LE(traffic.in_place(), traffic.within_host());
    if (several) {
      EXPECT_EQ(traffic.in_place(), 0);
    }
  });
}

std::string title_of_links(const testing::TestParamInfo<Links::ParamType>& tested) {
  const auto& [shape, precision, plan, kind, which] = tested.param;
  return std::to_string(shape.hosts) + "x" + std::to_string(shape.ranks_per_host) +
         in_title(std::string(name(precision)) + plan.label()) + std::to_string(kind) + (which == 1 ? "Muon" : "AdamW");
}

INSTANTIATE_TEST_SUITE_P(All, Links,
                         testing::ValuesIn(covering(std::vector{HostShape{1, 3}, HostShape{2, 2}, HostShape{2, 3},
                                                                HostShape{3, 2}},
                                                    std::vector{Precision::fp32, Precision::bf16}, all_plans(),
                                                    std::vector{0, 1, 2, 3}, std::vector{0, 1})),
                         title_of_links);

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
