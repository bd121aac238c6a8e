// What moves between tiers: counted where blocks are read and written, and foreseen from the plan.
#include "zero/tier_traffic.h"

#include <gtest/gtest.h>

#include <array>

#include "late_store.h"
#include "memory/tier_meter.h"
#include "zero/estimate.h"

namespace zero::test::tier_traffic_test {

TEST(TierMeter, CountsByStateWhatBlocksOfOtherTiersAreAskedFor) {
  TierMeter meter;
  LateStore store([](Owner, int, Tier, std::int64_t) {}, std::make_shared<LateWatch>());
  store.meter_by(meter);
  Block moments = store.take(64, Owner::optimizer), gradient = store.take(64, Owner::gradient);
  const Block buffer = store.take(64, Owner::update);
  std::array<char, 64> bytes{};
  const auto view = [&](std::int64_t count) { return View{bytes.data(), count, Dtype::u8}; };
  moments.write(0, view(64)).wait();
  moments.read(8, view(24)).wait();
  Block moved = std::move(gradient);
  moved.write(0, view(64)).wait();
  {
    const TierMeter::SetupTraffic apart;
    moved.read(0, view(16)).wait();
  }
  buffer.read(0, view(64)).wait();
  const TierTraffic steps = meter.steps(), others = meter.others();
  EXPECT_EQ(steps.on(Tier::disk, State::optimizer), (TierTraffic::Entry{.read = 24, .written = 64}));
  EXPECT_EQ(steps.on(Tier::disk, State::gradient), (TierTraffic::Entry{.written = 64}));
  EXPECT_EQ(steps.on(Tier::disk), (TierTraffic::Entry{.read = 24, .written = 128}));
  EXPECT_EQ(others.on(Tier::disk), (TierTraffic::Entry{.read = 16}));
  EXPECT_EQ(steps.on(Tier::host), TierTraffic::Entry{});
  meter.reset();
  EXPECT_EQ(meter.steps(), TierTraffic{});
  EXPECT_EQ(meter.others(), others);
}

// From a block of a device is down to the host.
TEST(TierMeter, BooksWhatGoesOverTheLinkAsTheHosts) {
  TierMeter meter;
  meter.count(Tier::device, Owner::gathered, {.written = 8});
  meter.count(Tier::device, Owner::parameter, {.read = 2, .written = 4});
  meter.count(Tier::device, Owner::reduction, {.read = 16});
  meter.count(Tier::device, Owner::update, {.read = 32});
  EXPECT_EQ(meter.steps().on(Tier::host, State::parameter), (TierTraffic::Entry{.read = 12, .written = 2}));
  EXPECT_EQ(meter.steps().on(Tier::host, State::gradient), (TierTraffic::Entry{.written = 16}));
  EXPECT_EQ(meter.steps().on(Tier::disk), TierTraffic::Entry{});
}

// Two units on four ranks, of which no slice is cut unevenly.
Layout even(Dtype dtype) {
  const std::vector<ParameterSpec> specs{{.name = "a", .numel = 4096, .dtype = dtype, .unit = "a"},
                                         {.name = "b", .numel = 1024, .dtype = dtype, .unit = "b"}};
  return {specs, 4};
}

struct Bytes {
  TierTraffic::Entry optimizer, gradient;
};

// Of a step of all ranks, by parameter: those of docs/tiers.md.
Bytes per_parameter(const Plan& plan, Dtype dtype, const Optimizer& optimizer = AdamW{}) {
  const Plan both = plan.offload(State::optimizer, Tier::disk).offload(State::gradient, Tier::disk);
  const TierTraffic moved = estimate(both, even(dtype), optimizer).moved.step();
  const auto each = [](const TierTraffic::Entry& entry) {
    return TierTraffic::Entry{4 * entry.read / 5120, 4 * entry.written / 5120};
  };
  return {each(moved.on(Tier::disk, State::optimizer)), each(moved.on(Tier::disk, State::gradient))};
}

TEST(TierTraffic, OfAStepIsThatOfTheDocuments) {
  using Entry = TierTraffic::Entry;
  const Bytes plain = per_parameter(Plan::zero2(), Dtype::f32);
  EXPECT_EQ(plain.optimizer, (Entry{8, 8}));
  EXPECT_EQ(plain.gradient, (Entry{4 + 4, 4}));
  const Bytes mixed = per_parameter(Plan::zero2().bf16(), Dtype::bf16);
  EXPECT_EQ(mixed.optimizer, (Entry{12, 12}));
  EXPECT_EQ(mixed.gradient, (Entry{2 + 2, 2}));
  const Bytes added = per_parameter(Plan::zero2().bf16().accumulate(3), Dtype::bf16);
  EXPECT_EQ(added.gradient, (Entry{2 * 4 + 4 + 4, 3 * 4}));
  const Bytes narrow = per_parameter(Plan::zero3().bf16(), Dtype::bf16, AdamW{.format = MomentFormat::bf16});
  EXPECT_EQ(narrow.optimizer, (Entry{8, 8}));
  const Bytes kahan = per_parameter(Plan::zero3().precision(Precision::bf16_kahan), Dtype::bf16, Sgd{.momentum = 0.9});
  EXPECT_EQ(kahan.optimizer, (Entry{6, 6}));
  // Whole gradients of every rank's, then the slice of the sum.
  const Bytes partial = per_parameter(Plan::zero1().accumulate(2), Dtype::f32);
  EXPECT_EQ(partial.gradient, (Entry{4 * (4 + 4) + 4 + 4, 4 * 2 * 4 + 4}));
}

// Each unit is read for its use in forward and in backward, the largest budget but once; an update writes all.
TEST(TierTraffic, OfParametersIsThatOfTheirUsesAndOfTheUpdate) {
  const auto moved = [](const Plan& plan, Dtype dtype) {
    return estimate(plan.offload(State::parameter, Tier::disk), even(dtype), AdamW{}).moved;
  };
  const std::int64_t slice = 5120 / 4;
  const Plan whole = Plan::zero3().resident_budget(std::int64_t{1} << 40);
  const TierMoves wide = moved(whole, Dtype::f32), narrow = moved(whole.bf16(), Dtype::bf16);
  EXPECT_EQ(wide.use.on(Tier::disk), (TierTraffic::Entry{.read = 4 * slice}));
  EXPECT_EQ(wide.update.on(Tier::disk), (TierTraffic::Entry{4 * slice, 4 * slice}));
  EXPECT_EQ(narrow.use.on(Tier::disk), (TierTraffic::Entry{.read = 2 * slice}));
  EXPECT_EQ(narrow.update.on(Tier::disk), (TierTraffic::Entry{.written = 2 * slice}));
  EXPECT_GT(moved(Plan::zero3().resident_budget(1), Dtype::f32).use.on(Tier::disk).read, 4 * slice);
}

// Three micro-batches on four ranks, in bf16, by the tables of docs/tiers.md.
TEST(TierTraffic, OverTheLinkIsThatOfTheDocuments) {
  using Entry = TierTraffic::Entry;
  constexpr std::int64_t whole = 5120, slice = whole / 4;
  const Layout layout = even(Dtype::bf16);
  const auto moved = [&](const Plan& plan) {
    return estimate(Plan(plan).bf16().accumulate(3), layout, AdamW{}, Trace::sequential(layout), Memory::device).moved;
  };
  const auto host = [](const Plan& plan) {
    return plan.offload(State::optimizer, Tier::host).offload(State::gradient, Tier::host);
  };
  const TierMoves each = moved(host(Plan::zero2()));
  EXPECT_EQ(each.backward.on(Tier::host, State::gradient), (Entry{.written = 3 * 4 * slice}));
  EXPECT_EQ(each.vote, TierTraffic{});
  EXPECT_EQ(each.update.on(Tier::host), (Entry{.read = 2 * slice}));
  const TierMoves once = moved(host(Plan::zero1()));
  EXPECT_EQ(once.backward.on(Tier::host), (Entry{.read = 4 * whole, .written = 3 * 2 * whole + 4 * slice}));
  const TierMoves apart = moved(Plan::zero2().offload(State::gradient, Tier::host));
  EXPECT_EQ(apart.update.on(Tier::host, State::optimizer), (Entry{12 * slice, 12 * slice}));
  const TierMoves gradients = moved(Plan::zero2().offload(State::optimizer, Tier::disk));
  EXPECT_EQ(gradients.update.on(Tier::host, State::gradient), (Entry{.written = 4 * slice}));
  EXPECT_EQ(gradients.update.on(Tier::host, State::optimizer), Entry{});
  const TierMoves brought = moved(host(Plan::zero3()).offload(State::parameter, Tier::host));
  EXPECT_EQ(brought.use.on(Tier::host, State::parameter).read % (2 * slice), 0);
  EXPECT_GE(brought.use.on(Tier::host, State::parameter).read, 2 * slice);
  EXPECT_EQ(brought.update, TierTraffic{});
  const TierMoves read = moved(host(Plan::zero3()).offload(State::parameter, Tier::disk));
  EXPECT_EQ(read.use.on(Tier::host), brought.use.on(Tier::host));
  EXPECT_EQ(read.use.on(Tier::disk), read.use.on(Tier::host));
}

TEST(TierTraffic, OfWholeTensorsReadsAllAgainAndWritesWeightsOnce) {
  const std::vector<ParameterSpec> specs{{.name = "a", .numel = 4096, .dtype = Dtype::bf16, .unit = "a"}};
  const std::vector<ParameterRule> rules{{.optimizer = Lamb{}, .shape = {64, 64}}};
  const Plan plan = Plan::zero3().bf16().offload(State::optimizer, Tier::disk).offload(State::gradient, Tier::disk);
  const Layout layout(specs, 4);
  const TierTraffic moved = estimate(plan, layout, rules, Trace::sequential(layout)).moved.update;
  EXPECT_EQ(moved.on(Tier::disk, State::optimizer), (TierTraffic::Entry{2 * 12 * 1024, (4 + 2 * 8) * 1024}));
  EXPECT_EQ(moved.on(Tier::disk, State::gradient), (TierTraffic::Entry{.read = 2 * 2 * 1024}));
}

TEST(TierTraffic, OfATreeJoinsItsLevels) {
  // Of five micro-batches: 0 keeps, 1 joins, 2 keeps, 3 joins two, 4 joins the highest.
  const Bytes tree = per_parameter(Plan::zero2().accumulate(5).reproducible(true), Dtype::f32);
  EXPECT_EQ(tree.gradient, (TierTraffic::Entry{(0 + 1 + 0 + 2 + 1) * 4 + 4 + 4, 5 * 4}));
}

TEST(TierTraffic, OfManyRanksIsThatOfTheRankThatMovesMost) {
  const std::vector<ParameterSpec> specs{{.name = "a", .numel = 100, .unit = "u"},
                                         {.name = "b", .numel = 7, .unit = "u"}};
  for (const int ranks : {1, 2, 3, 8, 64}) {
    const Layout layout(specs, ranks);
    const UnitLayout& unit = layout.units()[0];
    std::int64_t most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      std::int64_t mine = 0;
      for (const Piece& piece : unit.pieces(rank)) mine += piece.end - piece.begin;
      most = std::max(most, mine);
    }
    const TierTraffic moved =
        estimate(Plan::zero3().offload(State::optimizer, Tier::disk), layout, AdamW{}).moved.step();
    EXPECT_EQ(moved.on(Tier::disk, State::optimizer), (TierTraffic::Entry{8 * most, 8 * most})) << ranks;
  }
}

TEST(TierTraffic, OfStatesOnTheDeviceIsNone) {
  EXPECT_EQ(estimate(Plan::zero3(), even(Dtype::f32), AdamW{}).moved, TierMoves{});
}

}  // namespace zero::test::tier_traffic_test
