// Plans for activations, from traces written by hand.
#include "partition/activation_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "hand_trace.h"

namespace zero::activation_plan_test {

// A chain of layers, whose results backward reads in reverse.
OperatorTrace chain(int layers, std::int64_t bytes = 100) {
  Trace trace;
  std::vector<int> made{trace.makes(bytes, {})};
  for (int i = 1; i < layers; ++i) made.push_back(trace.makes(bytes, {made.back()}));
  for (; !made.empty(); made.pop_back()) {
    trace.reads({made.back()});
    trace.ends(made.back());
  }
  return trace.get();
}

TEST(ActivationPlans, DropNothingWithinTheBudget) {
  const OperatorTrace trace = chain(8);
  EXPECT_EQ(unlimited_peak(trace), 800);
  const auto plan = activation_plan(trace, 800);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->peak, 800);
  EXPECT_EQ(plan->recomputations, 0);
}

TEST(ActivationPlans, KeepWithinEachBudgetThatTheyMeet) {
  const OperatorTrace trace = chain(32);
  std::int64_t before = 0;
  for (const std::int64_t budget : {2400, 1600, 800, 500}) {
    const auto plan = activation_plan(trace, budget);
    ASSERT_TRUE(plan) << budget;
    EXPECT_LE(plan->peak, budget);
    EXPECT_GT(plan->nanoseconds, before);  // less memory takes more time
    before = plan->nanoseconds;
  }
}

TEST(ActivationPlans, ThereIsNoneBelowWhatAnOperatorNeeds) {
  Trace trace;
  const int one = trace.makes(100, {});
  const int two = trace.makes(300, {one});
  trace.last_operator().scratch_bytes = 50;
  trace.reads({two});
  trace.ends(two);
  trace.reads({one});
  const LargestNeed largest = largest_need(trace.get());
  EXPECT_EQ(largest.op, 1);
  EXPECT_EQ(largest.bytes, 450);
  EXPECT_FALSE(activation_plan(trace.get(), 449));
  EXPECT_TRUE(activation_plan(trace.get(), 450));
  EXPECT_EQ(least_budget(trace.get()), 450);
}

// The dear one of two is kept.
TEST(ActivationPlans, DropWhatCostsLeast) {
  Trace trace;
  const int seed = trace.makes(10, {});
  const int dear = trace.makes(100, {seed}, 1'000'000);
  const int cheap = trace.makes(100, {seed}, 1000);
  const int last = trace.makes(100, {seed}, 1000);
  trace.reads({last});
  trace.ends(last);
  trace.reads({cheap});
  trace.ends(cheap);
  trace.reads({dear});
  const auto plan = activation_plan(trace.get(), 220);
  ASSERT_TRUE(plan);
  EXPECT_LT(plan->nanoseconds, 1'000'000);
  for (const auto& drops : plan->drops) EXPECT_EQ(std::ranges::count(drops, dear, &ActivationPlan::Drop::storage), 0);
}

// What an operator that cannot be run again has made stays, and so does what alone it can be made of.
TEST(ActivationPlans, KeepWhatCannotBeMadeAgain) {
  Trace trace;
  const int drawn = trace.makes(100, {}, 1000, /*again=*/false);
  const int of_it = trace.makes(100, {drawn});
  const int other = trace.makes(100, {});
  trace.ends(drawn);
  trace.reads({other});
  trace.reads({of_it});
  EXPECT_FALSE(activation_plan(trace.get(), 199)) << "what was drawn is needed for what is made of it";
  const auto plan = activation_plan(trace.get(), 200);
  ASSERT_TRUE(plan) << "of three of a hundred bytes two are there at a time";
  EXPECT_EQ(plan->recomputations, 2) << "and what was drawn goes when nothing needs it any more";
}

// A version that was written over is made in memory of its own.
TEST(ActivationPlans, CountOlderVersionsTwice) {
  Trace trace;
  const int seed = trace.makes(10, {});
  const int written = trace.makes(100, {seed});
  const int of_first = trace.makes(100, {written});
  trace.writes(written);
  const int other = trace.makes(150, {seed});
  trace.reads({other});
  trace.ends(other);
  trace.reads({of_first});
  trace.ends(of_first);
  trace.reads({written});
  EXPECT_EQ(unlimited_peak(trace.get()), 360);
  const auto plan = activation_plan(trace.get(), 310);
  ASSERT_TRUE(plan);
  EXPECT_LE(plan->peak, 310);
}

// Memory that was only allocated has values that nobody can make again, until operators have written all of it.
TEST(ActivationPlans, KeepMemoryThatNoOperatorHasWritten) {
  Trace trace;
  const int allocated = trace.makes(100, {});
  const int other = trace.makes(100, {});
  trace.reads({other});
  trace.ends(other);
  trace.reads({allocated});
  OperatorTrace unwritten = trace.get();
  unwritten.storages[static_cast<std::size_t>(allocated)].whole_from = TracedStorage::kNever;
  EXPECT_FALSE(activation_plan(unwritten, 150));
  EXPECT_TRUE(activation_plan(trace.get(), 150));
}

// Of a layer whose unit is not gathered when it is read.
TEST(ActivationPlans, GatherNoUnitOnceMore) {
  Trace trace;
  std::vector<int> made{trace.makes(100, {})};
  for (int i = 1; i < 9; ++i) {
    made.push_back(trace.makes(100, {made.back()}));
    trace.last_operator().units = {i};
    made.push_back(trace.makes(100, {made.back()}));  // of the layer, without parameters
  }
  for (int i = 8; i > 0; --i) {
    trace.reads({made.back()});
    trace.last_operator().units = {i};
    trace.ends(made.back());
    made.pop_back();
    trace.reads({made.back()});
    trace.last_operator().units = {i};
    trace.ends(made.back());
    made.pop_back();
  }
  trace.reads({made.back()});
  const auto plan = activation_plan(trace.get(), 1200);
  ASSERT_TRUE(plan);
  EXPECT_GT(plan->recomputations, 0);
  EXPECT_EQ(plan->gathers, 0);
}

// What lives on is there in the end.
TEST(ActivationPlans, BringBackWhatLivesOn) {
  Trace trace;
  const int seed = trace.makes(10, {});
  const int result = trace.makes(100, {seed});
  const int other = trace.makes(100, {seed});
  trace.reads({other});
  trace.ends(other);
  const auto plan = activation_plan(trace.get(), 150);
  ASSERT_TRUE(plan);
  EXPECT_GE(plan->recomputations, 1);
  EXPECT_GE(plan->nanoseconds, 1000);
  static_cast<void>(result);
}

TEST(ActivationPlans, LevelTheTimesOfWhatIsAlike) {
  OperatorTrace trace;
  for (const std::int64_t took : {5, 1, 100}) {
    trace.operators.emplace_back().nanoseconds = took;
    trace.operators.back().alike = 7;
  }
  trace.operators.emplace_back().nanoseconds = 9;
  level_times(trace);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(trace.operators[static_cast<std::size_t>(i)].nanoseconds, 5);
  EXPECT_EQ(trace.operators[3].nanoseconds, 9);
}

// -- What is stored.

constexpr StoredWay kCodes{.nanoseconds_a_byte = 1, .exact = false};

// As chain(), of operators that cannot be run again.
OperatorTrace stored_chain(int layers, std::int64_t bytes, std::int64_t nanoseconds) {
  Trace trace;
  std::vector<int> made{trace.makes(bytes, {}, nanoseconds, /*again=*/false)};
  for (int i = 1; i < layers; ++i) made.push_back(trace.makes(bytes, {made.back()}, nanoseconds, /*again=*/false));
  for (const int each : made) trace.may_be_stored(each);
  for (; !made.empty(); made.pop_back()) {
    trace.reads({made.back()});
    trace.last_operator().nanoseconds = nanoseconds;
    trace.ends(made.back());
  }
  return trace.get();
}

TEST(StoredActivations, KeepWithinABudgetThatNothingElseMeets) {
  const OperatorTrace trace = stored_chain(32, 100, 1000);
  EXPECT_FALSE(activation_plan(trace, 800));
  const auto plan = activation_plan(trace, 800, 0, kDisk);
  ASSERT_TRUE(plan);
  EXPECT_LE(plan->peak, 800);
  EXPECT_EQ(plan->recomputations, 0);
  EXPECT_GE(plan->moved, 2 * 24 * 100);
}

// A byte takes 5 ns one way, a storage 500, an operator 1000: all of it is beside operators. With 50 ns one way it
// takes 5000, and what remains is waited for.
TEST(StoredActivations, AreMovedBesideOperators) {
  const OperatorTrace trace = stored_chain(32, 100, 1000);
  const auto quick = activation_plan(trace, 800, 0, kDisk);
  ASSERT_TRUE(quick);
  EXPECT_EQ(quick->nanoseconds, 0);
  EXPECT_FALSE(std::ranges::all_of(quick->moves, [](const auto& each) { return each.empty(); }));
  const auto slow = activation_plan(trace, 800, 0, {.nanoseconds_a_byte = 100});
  ASSERT_TRUE(slow);
  const std::int64_t moving = slow->moved * 50;
  EXPECT_GT(slow->nanoseconds, moving - 64 * 1000);  // of 64 operators
  EXPECT_LT(slow->nanoseconds, moving);
}

TEST(StoredActivations, AreComputedAgainWhereThatIsCheaper) {
  Trace trace;
  const int seed = trace.makes(10, {});
  const int dear = trace.makes(100, {seed}, 1'000'000);
  const int cheap = trace.makes(100, {seed}, 100);
  for (const int each : {dear, cheap}) trace.may_be_stored(each);
  const int last = trace.makes(200, {seed}, 1000);
  trace.reads({last});
  trace.ends(last);
  trace.reads({cheap});
  trace.ends(cheap);
  trace.reads({dear});
  const auto plan = activation_plan(trace.get(), 220, 0, {.nanoseconds_a_byte = 100'000});
  ASSERT_TRUE(plan);
  std::map<int, bool> stores;
  for (const auto& drops : plan->drops)
    for (const auto& each : drops) stores[each.storage] = each.stores;
  EXPECT_EQ(stores, (std::map<int, bool>{{dear, false}, {cheap, false}}));
  const auto stored = activation_plan(trace.get(), 220, 0, kDisk);
  ASSERT_TRUE(stored);
  for (const auto& drops : stored->drops)
    for (const auto& each : drops) stores[each.storage] = each.stores;
  EXPECT_TRUE(stores[dear]);
}

// One that is to be fetched comes before, with another result of the operator that runs again.
TEST(StoredActivations, MayComeWithAnother) {
  Trace trace;
  const int seed = trace.makes(10, {});
  const int one = trace.makes(100, {seed});
  const int two = trace.also(100);
  for (const int each : {one, two}) trace.may_be_stored(each);
  const int large = trace.makes(250, {seed});
  trace.reads({large});
  trace.ends(large);
  for (std::uint32_t chance = 1; chance < 60; ++chance) {
    Trace all = trace;
    all.reads({one, two});
    const auto plan = activation_plan(all.get(), 310, chance, kDisk);
    ASSERT_TRUE(plan);
    EXPECT_LE(plan->peak, 310);
  }
}

// In fewer bits they are not what others are made of: what comes of them keeps them, or is made again from before.
TEST(StoredActivations, InFewerBitsAreForWhoTouchesThemAlone) {
  for (const bool again : {true, false}) {
    Trace trace;
    const int one = trace.makes(100, {}, 1000, again);
    trace.may_be_stored(one, 26);
    const int two = trace.makes(100, {one});
    const int three = trace.makes(100, {two}, 1000, /*again=*/false);
    trace.reads({three});
    trace.ends(three);
    trace.reads({two});
    trace.ends(two);
    trace.rounds(one);
    trace.reads({one});
    trace.ends(one);
    const auto plan = activation_plan(trace.get(), 250, 0, kCodes);
    ASSERT_TRUE(plan) << again;
    EXPECT_LE(plan->peak, 250);
    bool stores = false, drops_two = false;
    for (const auto& drops : plan->drops)
      for (const auto& each : drops) {
        stores = stores || (each.storage == one && each.stores);
        drops_two = drops_two || each.storage == two;
      }
    EXPECT_TRUE(again || !(stores && drops_two)) << "two would be made of what is not one any more";
  }
}

// One that is dropped twice, has come back with another result between, and is stored the second time.
TEST(StoredActivations, AreStoredFromWhenTheyHaveComeBack) {
  int again = 0;
  for (std::uint32_t chance = 1; chance < 400; ++chance) {
    Trace trace;
    const int seed = trace.makes(10, {});
    const int one = trace.makes(100, {seed});
    const int two = trace.also(100);
    for (const int each : {one, two}) trace.may_be_stored(each);
    for (int i = 0; i < 3; ++i) {
      const int large = trace.makes(250, {seed});
      trace.reads({large});
      trace.ends(large);
      trace.reads({i % 2 == 0 ? one : two});
    }
    trace.reads({one, two});
    const auto plan = activation_plan(trace.get(), 370, chance, kDisk);
    ASSERT_TRUE(plan);
    EXPECT_TRUE(stores_whole(*plan)) << chance;
    std::map<int, std::vector<bool>> ways;
    for (const auto& drops : plan->drops)
      for (const auto& each : drops) ways[each.storage].push_back(each.stores);
    for (const auto& [storage, stores] : ways) again += stores.size() > 1 && !stores.front() && stores.back();
  }
  EXPECT_GT(again, 0);
}

}  // namespace zero::activation_plan_test
