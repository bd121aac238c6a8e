// Plans for activations, from traces written by hand.
#include "partition/activation_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "partition/residue.h"

namespace zero::activation_plan_test {

// Operators of a micro-batch one by one. Storages are numbers; each is read by name of its number.
class Trace {
 public:
  // An operator that makes one storage of so many bytes of others.
  int makes(std::int64_t bytes, const std::vector<int>& of, std::int64_t nanoseconds = 1000, bool again = true) {
    const int number = static_cast<int>(trace_.storages.size());
    TracedOperator& op = add(of, nanoseconds, again);
    trace_.storages.push_back({.bytes = bytes, .writers = {last()}});
    op.results = {number};
    op.result_bytes = bytes;
    return number;
  }
  // One that reads some and keeps nothing.
  void reads(const std::vector<int>& of, bool backward = true) { add(of, 1000, /*again=*/false).backward = backward; }
  void writes(int storage, const std::vector<int>& of = {}) {
    TracedOperator& op = add(of, 1000, /*again=*/true);
    op.uses.push_back({storage, version(storage), /*written=*/true});
    its(storage).writers.push_back(last());
    its(storage).readers.push_back(last());
  }
  // Another result of the last operator.
  int also(std::int64_t bytes) {
    const int number = static_cast<int>(trace_.storages.size());
    trace_.storages.push_back({.bytes = bytes, .writers = {last()}});
    last_operator().results.push_back(number);
    last_operator().result_bytes += bytes;
    return number;
  }
  void may_be_stored(int storage, std::int64_t bytes = 0) { its(storage).stored_bytes = bytes; }
  // Rounds it before what follows, which reads it in backward.
  void rounds(int storage) {
    writes(storage);
    last_operator().again = false;
    last_operator().rounds = last_operator().backward = true;
  }
  void ends(int storage) { its(storage).death = static_cast<int>(trace_.operators.size()); }
  TracedOperator& last_operator() { return trace_.operators.back(); }
  const OperatorTrace& get() const { return trace_; }

 private:
  int last() const { return static_cast<int>(trace_.operators.size()) - 1; }
  TracedStorage& its(int storage) { return trace_.storages[static_cast<std::size_t>(storage)]; }
  int version(int storage) { return static_cast<int>(its(storage).writers.size()); }
  TracedOperator& add(const std::vector<int>& of, std::int64_t nanoseconds, bool again) {
    TracedOperator& op = trace_.operators.emplace_back();
    op.nanoseconds = nanoseconds;
    op.again = again;
    for (const int storage : of) {
      op.uses.push_back({storage, version(storage), /*written=*/false});
      its(storage).readers.push_back(last());
    }
    return op;
  }

  OperatorTrace trace_;
};

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

constexpr StoredWay kDisk{.nanoseconds_a_byte = 10};
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

// Whether each storage that begins to be stored has its memory until it is.
bool stores_whole(const ActivationPlan& plan) {
  std::set<int> begun;
  for (std::size_t i = 0; i < plan.drops.size(); ++i) {
    for (const auto& each : plan.drops[i])
      if (begun.erase(each.storage) > 0 && !each.stores) return false;
    if (i < plan.moves.size())
      for (const auto& each : plan.moves[i])
        if (!each.fetches) begun.insert(each.storage);
  }
  return true;
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

// A micro-batch that goes by a plan, as ActivationWindow does, and remembers only what the plan says may run again.
class Following final : public Residue {
 public:
  Following(OperatorTrace& copy, const ActivationPlan& plan, StoredWay way) : Residue(copy, way), plan_(plan) {}

  void go() {
    const auto count = static_cast<int>(trace_.operators.size());
    for (std::size_t i = 0; i < trace_.operators.size(); ++i)
      trace_.operators[i].again = trace_.operators[i].again && plan_.needed[i] != 0;
    for (now_ = 0; now_ < count; ++now_) {
      end_what_dies();
      execute(op(now_));
    }
    end_what_dies();
    std::vector<int> living;
    for (std::size_t i = 0; i < trace_.storages.size(); ++i)
      if (state(static_cast<int>(i)).live) living.push_back(static_cast<int>(i));
    bring(living);
  }

 private:
  void dropped(int, bool) override {}
  void fetch(int) override {}
  void discard(int) override {}
  void recompute(int number, int, bool) override { EXPECT_TRUE(op(number).again); }
  void made(int, Key, bool) override {}
  void forgotten(Key) override {}
  void freed(int) override {}
  void may_be_made(int, int) override {}
  void make_room(std::int64_t) override {
    const auto at = static_cast<std::size_t>(executions());
    if (at >= plan_.drops.size()) return;
    for (const auto& [number, stores] : plan_.drops[at])
      if (const State& each = state(number); each.present && each.pins == 0) drop(number, stores);
  }
  std::int64_t held() const override { return bytes_; }

  void end_what_dies() {
    for (std::size_t i = 0; i < trace_.storages.size(); ++i)
      if (trace_.storages[i].death == now_) die(static_cast<int>(i));
  }
  void execute(const TracedOperator& its) {
    std::vector<int> arguments;  // each once, in order
    std::set<int> overwritten;
    for (const StorageUse& use : its.uses) {
      if (std::ranges::find(arguments, use.storage) == arguments.end()) arguments.push_back(use.storage);
      if (use.written) overwritten.insert(use.storage);
    }
    bring(arguments);
    before_overwriting(its.uses);
    make_room(0);
    need(its.result_bytes + its.scratch_bytes);
    ran();
    for (const int each : overwritten) written(each);
    for (const int result : its.results) born(result);
    unpin(arguments);
  }

  const ActivationPlan& plan_;
};

// One of 40 operators and those of its backward, drawn at random.
OperatorTrace micro_batch(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  Trace trace;
  std::vector<int> living{trace.makes(64, {})};
  std::map<int, int> units{{living[0], 0}};  // of whatever has made it
  for (int i = 0; i < 40; ++i) {
    std::vector<int> of{living[below(living.size())], living[below(living.size())]};
    if (of[0] == of[1]) of.pop_back();
    if (random() % 5 == 0) {
      trace.writes(of[0]);
    } else {
      const bool repeats = random() % 8 != 0;
      living.push_back(trace.makes(static_cast<std::int64_t>(16 + random() % 100), of,
                                   static_cast<std::int64_t>(random() % 5000), repeats));
      if (random() % 2 == 0) trace.may_be_stored(living.back());
      if (random() % 4 == 0) {
        living.push_back(trace.also(static_cast<std::int64_t>(16 + random() % 100)));
        trace.may_be_stored(living.back());
      }
      units[living.back()] = i / 8;
      if (random() % 4 == 0) trace.last_operator().units = {i / 8};
    }
    if (living.size() > 4 && random() % 4 == 0) {
      const std::size_t gone = below(living.size());
      trace.ends(living[gone]);
      living.erase(living.begin() + static_cast<std::ptrdiff_t>(gone));
    }
  }
  for (; !living.empty(); living.pop_back()) {
    trace.reads({living.back()});
    if (units.contains(living.back())) trace.last_operator().units = {units[living.back()]};
    trace.ends(living.back());
  }
  return trace.get();
}

// Of micro-batches drawn at random a plan keeps within its budget, whatever goes first, and who goes by it comes to the
// same.
TEST(ActivationPlans, OfAnyMicroBatchKeepWithinTheBudget) {
  int met = 0;
  for (std::uint32_t seed = 1; seed <= 100; ++seed) {
    const OperatorTrace trace = micro_batch(seed);
    const std::int64_t all = unlimited_peak(trace);
    for (const std::int64_t percent : {90, 70, 50, 30})
      for (const StoredWay way : {StoredWay(), kDisk}) {
        const auto plan = activation_plan(trace, all * percent / 100, seed, way);
        if (!plan) continue;
        ++met;
        SCOPED_TRACE(testing::Message() << seed << " at " << percent << (way ? " stored" : ""));
        EXPECT_LE(plan->peak, all * percent / 100);
        EXPECT_TRUE(stores_whole(*plan));
        OperatorTrace copy = trace;
        Following run(copy, *plan, way);
        EXPECT_NO_THROW(run.go());
        EXPECT_EQ(run.executions(), plan->executions);
        EXPECT_LE(run.peak(), plan->peak);
      }
  }
  EXPECT_GT(met, 300);
}

}  // namespace zero::activation_plan_test
