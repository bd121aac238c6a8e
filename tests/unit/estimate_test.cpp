#include "zero/estimate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "partition/vote_sizes.h"
#include "zero/error.h"

namespace zero::estimate_test {

using Specs = std::vector<ParameterSpec>;
const Optimizer kAdamW = AdamW{};
constexpr std::int64_t kUnit = 1024;

// `count` units of kUnit elements each.
Specs equal_units(int count, Dtype dtype = Dtype::f32) {
  Specs specs;
  for (int i = 0; i < count; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    specs.push_back({.name = name, .numel = kUnit, .dtype = dtype, .unit = name});
  }
  return specs;
}

// Three linear layers of 2048 by 2048 with their biases: 12,589,056 parameters.
Specs three_linears(Dtype dtype = Dtype::f32) {
  Specs specs;
  for (const char* unit : {"0", "1", "2"}) {
    const std::string prefix = std::string(unit) + ".";
    specs.push_back({.name = prefix + "weight", .numel = 2048 * 2048, .dtype = dtype, .unit = unit});
    specs.push_back({.name = prefix + "bias", .numel = 2048, .dtype = dtype, .unit = unit});
  }
  return specs;
}

TEST(Estimate, StateOfThreeLinearsOnFourRanks) {
  const Layout layout(three_linears(), 4);
  ASSERT_EQ(layout.numel(), 12'589'056);
  for (const auto& [preset, megabytes] :
       {std::pair{"ddp", 201.4}, {"zero1", 125.9}, {"zero2", 88.1}, {"zero3", 50.4}}) {
    const Estimate estimated = estimate(Plan::named(preset), layout, kAdamW);
    EXPECT_NEAR(static_cast<double>(estimated.state.total()) / 1e6, megabytes, megabytes * 1e-3) << preset;
  }
}

// Bytes a parameter, as in figure 1 of the paper.
void expect_theory(Dtype dtype, std::int64_t parameter, std::int64_t gradient, std::int64_t optimizer,
                   const std::function<Plan(const Plan&)>& changed = std::identity()) {
  for (const int ranks : {1, 2, 4, 8, 16, 64}) {
    const Layout layout(three_linears(dtype), ranks);
    const std::int64_t n = layout.numel();
    ASSERT_EQ(n, layout.length());
    const auto state = [&](const Plan& plan) { return estimate(changed(plan), layout, kAdamW).state; };
    EXPECT_EQ(state(Plan::ddp()), (StateBytes{parameter * n, gradient * n, optimizer * n}));
    EXPECT_EQ(state(Plan::zero1()), (StateBytes{parameter * n, gradient * n, optimizer * n / ranks}));
    EXPECT_EQ(state(Plan::zero2()), (StateBytes{parameter * n, gradient * n / ranks, optimizer * n / ranks}));
    EXPECT_EQ(state(Plan::zero3()), (StateBytes{parameter * n / ranks, gradient * n / ranks, optimizer * n / ranks}));
  }
}

TEST(Estimate, StateIsTheTheoryInFp32) {
  expect_theory(Dtype::f32, 4, 4, 8);
}
TEST(Estimate, StateIsThePapersIn16Bits) {
  expect_theory(Dtype::bf16, 2, 2, 12, [](const Plan& plan) { return plan.bf16(); });
  expect_theory(Dtype::f16, 2, 2, 12, [](const Plan& plan) { return plan.precision(Precision::fp16); });
}
TEST(Estimate, GradientsThatAreAddedUpAreHeldInFp32) {
  expect_theory(Dtype::bf16, 2, 4, 12, [](const Plan& plan) { return plan.bf16().accumulate(2); });
  expect_theory(Dtype::bf16, 2, 4, 12, [](const Plan& plan) { return plan.bf16().reproducible(true); });
  expect_theory(Dtype::bf16, 2, 4, 12);  // parameters of 16 bits in a plan that computes in fp32
}
TEST(Estimate, StateIsTheTheoryInFp64) {
  expect_theory(Dtype::f64, 8, 8, 16);
}

// What is saved is there once, whoever keeps it, and main weights stand for the parameters that follow from them.
TEST(Estimate, ASaveIsDividedAmongAllRanks) {
  for (const int ranks : {1, 2, 4, 16})
    for (const Plan& plan : {Plan::ddp(), Plan::zero1(), Plan::zero2(), Plan::zero3()}) {
      const Layout layout(three_linears(), ranks), narrow(three_linears(Dtype::bf16), ranks);
      EXPECT_EQ(estimate(plan, layout, kAdamW).held[Owner::snapshot].peak, 12 * layout.numel() / ranks) << plan.label();
      EXPECT_EQ(estimate(plan.bf16(), narrow, kAdamW).held[Owner::snapshot].peak, 12 * narrow.numel() / ranks)
          << plan.label();
    }
  const Layout grouped(three_linears(), MeshShape{8, {.shard = 2}});
  for (const Plan& plan : {Plan::hybrid(), Plan::hybrid_zero2()})
    EXPECT_EQ(estimate(plan, grouped, kAdamW).held[Owner::snapshot].peak, 12 * grouped.numel() / 8) << plan.label();
}

TEST(Estimate, MomentsSetTheOptimizersBytes) {
  const Layout layout(equal_units(1), 2);
  EXPECT_EQ(estimate(Plan::zero1(), layout, Lion{}).state.optimizer, kUnit / 2 * 4);
  EXPECT_EQ(estimate(Plan::zero1(), layout, Sgd{}).state.optimizer, 0);
  EXPECT_EQ(estimate(Plan::zero1(), Layout(equal_units(1, Dtype::bf16), 2), Sgd{}).state.optimizer, kUnit / 2 * 4);
}

TEST(Estimate, ReproducibleKeepsACounterOfPartialSums) {
  for (const auto& [micro_batches, levels] :
       {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 2}, {5, 2}, {7, 2}, {8, 3}, {9, 3}, {1024, 10}}) {
    const Plan plan = Plan::zero2().accumulate(micro_batches);
    EXPECT_EQ(accumulation_levels(plan, 4), 1);
    EXPECT_EQ(accumulation_levels(plan.reproducible(true), 4), levels) << micro_batches;
  }
  EXPECT_EQ(accumulation_levels(Plan::zero2().accumulate(2).reproducible(true), 7), 3);  // of 4, 2 and 1
  EXPECT_EQ(accumulation_levels(Plan::zero1().accumulate(3).reproducible(true), 4), 2);  // leaf 3, then 4 and 5
  const Layout layout(equal_units(2), 4);
  const Plan plan = Plan::zero2().accumulate(8).reproducible(true);
  EXPECT_EQ(estimate(plan, layout, kAdamW).state.gradient, 3 * (2 * kUnit / 4 * 4));
}

TEST(Estimate, OneRankPaysForNoWire) {
  for (const std::string_view preset : Plan::stages()) {
    const Estimate estimated = estimate(Plan::named(preset).accumulate(4), Layout(equal_units(3), 1), kAdamW);
    EXPECT_EQ(estimated.wire, Traffic{}) << preset;
    EXPECT_EQ(estimated.gathers, 0);
    EXPECT_EQ(estimated.held[Owner::gathered].peak, 0);
    EXPECT_EQ(estimated.held[Owner::reduction].peak, 0);
  }
}

TEST(Estimate, FrozenUnitsHaveOnlyParameters) {
  Specs specs = equal_units(2);
  specs[0].trainable = false;
  const Layout layout(specs, 2);
  const Estimate estimated = estimate(Plan::zero3(), layout, kAdamW);
  EXPECT_EQ(estimated.state, (StateBytes{2 * kUnit / 2 * 4, kUnit / 2 * 4, kUnit / 2 * 8}));
  EXPECT_EQ(estimated.wire[Collective::reduce_scatter].calls, 1);
  EXPECT_EQ(estimated.gathers, 2);
}

TEST(Estimate, ReductionIsTheLargestTrainableUnit) {
  Specs specs = equal_units(3, Dtype::bf16);
  specs[1].numel = 4 * kUnit;
  specs[2].numel = 8 * kUnit;
  specs[2].trainable = false;
  const Layout layout(specs, 4);
  constexpr std::int64_t flat = 4 * kUnit * 2, slice = kUnit * 4;
  const auto reduction = [&](const Plan& plan) {
    return estimate(plan.bf16(), layout, kAdamW).held[Owner::reduction].peak;
  };
  EXPECT_EQ(reduction(Plan::zero1()), slice);
  EXPECT_EQ(reduction(Plan::zero1().accumulate(2)), 0);
  EXPECT_EQ(reduction(Plan::zero2()), flat + slice);
  EXPECT_EQ(reduction(Plan::zero2().accumulate(2)), flat + slice);
  EXPECT_EQ(reduction(Plan::zero2().reproducible(true)), flat);
}

// A block waits for the gradients of its own parameters, around those of the modules inside; one that has a single
// parameter does not.
TEST(Estimate, ReductionHasWhatWaitsAroundWhatIsInside) {
  const auto flats = [](const std::vector<std::pair<std::string, std::int64_t>>& parameters) {
    Specs specs;
    for (const auto& [unit, numel] : parameters)
      specs.push_back(
          {.name = unit + "." + std::to_string(specs.size()), .numel = numel, .dtype = Dtype::f32, .unit = unit});
    const Estimate estimated = estimate(Plan::zero2(), Layout(specs, 4), kAdamW);
    return estimated.held[Owner::reduction].peak - estimated.largest_slice();
  };
  constexpr std::int64_t k = 4 * kUnit;  // bytes
  EXPECT_EQ(flats({{"a", kUnit}, {"a", kUnit}, {"b", 4 * kUnit}}), 4 * k);
  EXPECT_EQ(flats({{"a", kUnit}, {"a", kUnit}, {"a.b", 4 * kUnit}, {"a.c", 3 * kUnit}}), 8 * k);
  EXPECT_EQ(flats({{"a", 2 * kUnit}, {"a.b", 4 * kUnit}}), 4 * k);
  EXPECT_EQ(flats({{"a", 4 * kUnit}, {"a", kUnit}, {"a.b", kUnit}, {"a.b", kUnit}, {"a.b.c.d", kUnit}}), 8 * k);
  EXPECT_EQ(flats({{"a", kUnit}, {"a", kUnit}, {"ab", 4 * kUnit}}), 4 * k);
}

struct Wire {
  std::int64_t gather_calls, gather_bytes, scatter_calls, scatter_bytes;
};

// Three equal bf16 units, four ranks, two micro-batches: every figure by hand. A slice of a unit is
// 256 elements; the exchanges are counted with their announcements.
void expect_wire(const Plan& plan, const Wire& per_peer) {
  constexpr int ranks = 4, peers = ranks - 1;
  const Estimate estimated = estimate(plan.accumulate(2), Layout(equal_units(3, Dtype::bf16), ranks), kAdamW);
  const std::int64_t vote = 8 * 71 + 8 * 2 + 8;
  ASSERT_EQ(vote_bytes(3, 2, false), vote);
  const Traffic::Entry& gather = estimated.wire[Collective::all_gather];
  const Traffic::Entry& scatter = estimated.wire[Collective::reduce_scatter];
  EXPECT_EQ(gather.calls, per_peer.gather_calls) << plan.label();
  EXPECT_EQ(gather.bytes, peers * (per_peer.gather_bytes + vote)) << plan.label();
  EXPECT_EQ(scatter.calls, per_peer.scatter_calls) << plan.label();
  EXPECT_EQ(scatter.bytes, peers * per_peer.scatter_bytes) << plan.label();
  EXPECT_EQ(estimated.wire.bytes(), gather.bytes + scatter.bytes) << plan.label();
}

// Two on their way: one more gathered unit, and one more flat gradient, each of the largest, and more where units wait
// for those inside them. Over several hosts by itself.
TEST(Estimate, UnitsOnTheirWayTakeMemory) {
  const auto buffers = [](const Plan& plan, const Specs& specs, const Topologies& topologies = {}) {
    const Layout layout(specs, 4);
    const Ledger held = estimate(plan, layout, kAdamW, Trace::sequential(layout), Memory::separate, topologies).held;
    return std::pair(held[Owner::gathered].peak, held[Owner::reduction].peak);
  };
  constexpr std::int64_t unit = 4 * kUnit;
  const Specs specs = equal_units(5);
  const auto [gathered, reduction] = buffers(Plan::zero3(), specs);
  const auto two = std::pair(gathered + unit, reduction + unit);
  EXPECT_EQ(gathered, 2 * unit);
  EXPECT_EQ(buffers(Plan::zero3().overlap(1), specs), std::pair(gathered, reduction));
  EXPECT_EQ(buffers(Plan::zero3().overlap(2), specs), two);
  const Topologies hosts(Topology{.ranks_per_host = 2, .two_levels = true});
  EXPECT_EQ(buffers(Plan::zero3(), specs, hosts), two);
  EXPECT_EQ(buffers(Plan::zero3().overlap(1), specs, hosts), std::pair(gathered, reduction));
  EXPECT_EQ(buffers(Plan::zero3(), specs, Topologies(Topology{.ranks_per_host = 4})), std::pair(gathered, reduction));
  EXPECT_EQ(buffers(Plan::zero3().overlap(2), equal_units(1)).second, buffers(Plan::zero3(), equal_units(1)).second);
  Specs around = equal_units(5);
  for (const char* name : {"m.p", "m.q"})
    around.push_back({.name = name, .numel = 8, .dtype = Dtype::f32, .unit = "m"});
  around.push_back({.name = "m.a", .numel = kUnit, .dtype = Dtype::f32, .unit = "m.a"});
  EXPECT_EQ(buffers(Plan::zero3().overlap(2), around).second, buffers(Plan::zero3(), around).second + 2 * unit);
}

TEST(Estimate, WireByHand) {
  // Three reductions with their gathers and the vote: four exchanges.
  expect_wire(Plan::ddp(), {4 + 4, 4 * 32 + 3 * 256 * 4, 3, 3 * 256 * 4});
  // Three reductions, three publications, the vote.
  expect_wire(Plan::zero1(), {7 + 4, 7 * 32 + 3 * 256 * 2, 3, 3 * 256 * 4});
  // Six reductions, three publications, the vote.
  expect_wire(Plan::zero2(), {10 + 4, 10 * 32 + 3 * 256 * 2, 6, 6 * 256 * 2});
  // Six gathers (see Paging), six reductions, the vote.
  expect_wire(Plan::zero3(), {13 + 7, 13 * 32 + 6 * 256 * 2, 6, 6 * 256 * 2});
  Plan mixed = Plan::zero3();
  mixed[State::gradient] = Plan::zero1()[State::gradient];
  expect_wire(mixed, {10 + 7, 10 * 32 + 6 * 256 * 2, 3, 3 * 256 * 4});
  mixed = Plan::zero1();
  mixed[State::gradient] = Plan::ddp()[State::gradient];
  expect_wire(mixed, {7 + 7, 7 * 32 + 3 * 256 * 4 + 3 * 256 * 2, 3, 3 * 256 * 4});
}

// Section 7 of the paper: 2 Psi for data parallelism, P_os and P_os+g; 3 Psi with parameters sharded
// and gathered for forward and for backward.
TEST(Estimate, WireIsTheTheory) {
  const Layout layout(three_linears(), 64);
  const double psi = 4.0 * static_cast<double>(layout.numel()) * 63 / 64;
  for (const auto& [preset, expected] : {std::pair{"ddp", 2.0}, {"zero1", 2.0}, {"zero2", 2.0}, {"zero3", 3.0}}) {
    const std::int64_t one_unit = layout.units().front().bytes();
    const Estimate estimated =
        estimate(Plan::named(preset).resident_budget(one_unit), layout, kAdamW, Trace{.touches = {0, 1, 2, 0, 1, 2}});
    EXPECT_NEAR(static_cast<double>(estimated.wire.bytes()) / psi, expected, 1e-2) << preset;
  }
}

// In common memory a unit is read where it lies: as many bytes, no announcement, no room, one barrier a step.
TEST(Estimate, CommonMemoryGathersWithoutRoomOrAnnouncements) {
  for (const int accumulate : {1, 3}) {
    const Layout layout(equal_units(5), 4);
    const Plan plan = Plan::zero3().accumulate(accumulate);
    const Estimate separate = estimate(plan, layout, kAdamW);
    const Estimate common = estimate(plan, layout, kAdamW, Trace::sequential(layout), Memory::common);
    EXPECT_EQ(common.state, separate.state);
    EXPECT_EQ(common.held[Owner::gathered].peak, 0);
    EXPECT_EQ(common.gathers, separate.gathers);
    const auto& sent = separate.wire[Collective::all_gather];
    const auto& read = common.wire[Collective::all_gather];
    EXPECT_EQ(read.calls, sent.calls - separate.gathers + 1);
    EXPECT_EQ(read.bytes, sent.bytes - (separate.gathers - 1) * 3 * kAnnouncementBytes);
    EXPECT_EQ(common.wire[Collective::barrier].calls, 1);
    EXPECT_EQ(common.wire[Collective::reduce_scatter].bytes, separate.wire[Collective::reduce_scatter].bytes);
  }
  const Layout layout(equal_units(5), 4);
  for (const Plan& plan : {Plan::ddp(), Plan::zero1(), Plan::zero2()})
    EXPECT_TRUE(estimate(plan, layout, kAdamW, Trace::sequential(layout), Memory::common).wire ==
                estimate(plan, layout, kAdamW).wire);
}

TEST(Estimate, UnitsWithoutElementsCostNothing) {
  Specs specs = equal_units(2);
  const Estimate without = estimate(Plan::zero3(), Layout(specs, 2), kAdamW);
  specs.insert(specs.begin() + 1, {.name = "empty", .numel = 0, .unit = "empty"});
  const Estimate with = estimate(Plan::zero3(), Layout(specs, 2), kAdamW, Trace{.touches = {0, 1, 2, 1, 0}});
  EXPECT_EQ(with.wire, without.wire);
  EXPECT_EQ(with.gathers, without.gathers);
  EXPECT_EQ(with.state, without.state);
}

TEST(Estimate, APlanOrTraceThatCannotRunThrows) {
  const Layout layout(equal_units(2), 2);
  EXPECT_THROW(estimate(Plan::ddp().accumulate(0), layout, kAdamW), ConfigError);
  EXPECT_THROW(estimate(Plan::zero3(), layout, kAdamW, Trace{.touches = {2}}), ConfigError);
  EXPECT_THROW(estimate(Plan::zero3(), layout, kAdamW, Trace{.touches = {-1}}), ConfigError);
  EXPECT_EQ(estimate(Plan::zero3(), Layout({}, 2), kAdamW).gathers, 0);
}

TEST(Trace, SequentialGoesThereAndBack) {
  Specs specs = equal_units(3);
  EXPECT_EQ(Trace::sequential(Layout(specs, 2)).touches, (std::vector<int>{0, 1, 2, 1, 0}));
  specs[0].read_in_backward = false;
  EXPECT_EQ(Trace::sequential(Layout(specs, 2)).touches, (std::vector<int>{0, 1, 2, 1}));
  specs[1].numel = 0;
  EXPECT_EQ(Trace::sequential(Layout(specs, 2)).touches, (std::vector<int>{0, 2}));
  specs[2].read_in_backward = false;
  specs[0].read_in_backward = true;
  EXPECT_EQ(Trace::sequential(Layout(specs, 2)).touches, (std::vector<int>{0, 2, 0}));
}

// Three equal units touched 0 1 2 1 0.
void expect_paging(std::int64_t units_of_budget, int micro_batches, int gathers, std::int64_t peak_units) {
  const Layout layout(equal_units(3), 2);
  const Plan plan = Plan::zero3().accumulate(micro_batches).resident_budget(units_of_budget * kUnit * 4);
  const Estimate estimated = estimate(plan, layout, kAdamW);
  EXPECT_EQ(estimated.gathers, gathers) << units_of_budget << " units, " << micro_batches << " micro-batches";
  EXPECT_EQ(estimated.held[Owner::gathered].peak, peak_units * kUnit * 4);
}

TEST(Paging, BudgetOfOneUnit) {
  expect_paging(1, 1, 5, 1);
  expect_paging(1, 2, 9, 1);  // unit 0 stays for the second
}

TEST(Paging, BudgetOfTwoUnitsIsTheDefault) {
  for (const int budget : {0, 2}) {
    expect_paging(budget, 1, 4, 2);  // 0 and 1; 2 for 0; 0 for 2
    expect_paging(budget, 2, 6, 2);  // then 2 for 0; 0 for 2
  }
}

TEST(Paging, BudgetOfEverything) {
  for (const int micro_batches : {1, 2, 7}) expect_paging(3, micro_batches, 3, 3);
}

TEST(Paging, LessThanAUnitStillRuns) {
  const Plan plan = Plan::zero3().resident_budget(1);
  const Estimate estimated = estimate(plan, Layout(equal_units(3), 2), kAdamW);
  EXPECT_EQ(estimated.gathers, 5);
  EXPECT_EQ(estimated.held[Owner::gathered].peak, kUnit * 4);
}

TEST(Paging, OneUnitIsGatheredOnce) {
  EXPECT_EQ(estimate(Plan::zero3().accumulate(1 << 20), Layout(equal_units(1), 2), kAdamW).gathers, 1);
}

// The rules of paging over a plain list, most recently used last.
struct Pages {
  const std::vector<UnitLayout>& units;
  std::int64_t budget;
  std::vector<int> list{};
  int gathers = 0;
  std::int64_t peak = 0;

  std::int64_t bytes(int unit) const { return units[static_cast<std::size_t>(unit)].bytes(); }
  bool resident(int unit) const { return std::ranges::find(list, unit) != list.end(); }
  std::int64_t total() const {
    std::int64_t sum = 0;
    for (const int unit : list) sum += bytes(unit);
    return sum;
  }
  void gather(int unit, std::size_t keep) {
    while (list.size() > keep && total() + bytes(unit) > budget) list.erase(list.begin());
    list.insert(list.end() - static_cast<std::ptrdiff_t>(keep), unit);
    ++gathers;
    peak = std::max(peak, total());
  }
  void touch(int unit, int next) {
    if (!resident(unit)) gather(unit, 0);
    std::erase(list, unit);
    list.push_back(unit);
    if (next >= 0 && !resident(next) && bytes(unit) + bytes(next) <= budget) gather(next, 1);
  }
};

TEST(Paging, AgreesWithAPlainList) {
  std::mt19937_64 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 300; ++round) {
    Specs specs = equal_units(2 + below(5));
    for (ParameterSpec& spec : specs) spec.numel = kUnit * (1 + below(4));
    const Layout layout(specs, 2);
    Trace trace;
    for (int i = 0; i < 12; ++i) trace.touches.push_back(below(static_cast<int>(specs.size())));
    const int micro_batches = 1 + below(9);
    const std::int64_t budget = 4 * kUnit * (1 + below(12));

    std::vector<int> walk;
    for (int i = 0; i < micro_batches; ++i) walk.insert(walk.end(), trace.touches.begin(), trace.touches.end());
    Pages pages{layout.units(), budget};
    for (auto unit = walk.begin(); unit != walk.end(); ++unit) {
      const auto next = std::find_if(unit, walk.end(), [&](int other) { return other != *unit; });
      pages.touch(*unit, next == walk.end() ? -1 : *next);
    }
    const Plan plan = Plan::zero3().accumulate(micro_batches).resident_budget(budget);
    const Estimate estimated = estimate(plan, layout, kAdamW, trace);
    ASSERT_EQ(estimated.gathers, pages.gathers);
    ASSERT_EQ(estimated.held[Owner::gathered].peak, pages.peak);
  }
}

}  // namespace zero::estimate_test
