// Plans for activations, of micro-batches drawn at random, and who goes by them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "hand_trace.h"
#include "partition/activation_plan.h"
#include "partition/eviction.h"

namespace zero::activation_plan_test {

// A micro-batch that goes by a plan, as ActivationWindow does, and remembers only what the plan says may run again;
// once it is out of step it keeps to the budget by itself.
class Following final : public Eviction {
 public:
  Following(OperatorTrace& copy, const ActivationPlan& plan, std::int64_t budget, StoredWay way)
      : Eviction(copy, budget, 0, way), plan_(plan) {}

  void go() {
    const auto count = static_cast<int>(trace_.operators.size());
    for (now_ = 0; now_ < count; ++now_) {
      end_what_dies();
      const auto at = static_cast<std::size_t>(now_);
      follows_ = follows_ && executions() == plan_.begins[at];
      op(now_).again = op(now_).again && (!follows_ || plan_.needed[at] != 0);
      execute(op(now_));
    }
    end_what_dies();
    std::vector<int> living;
    for (std::size_t i = 0; i < trace_.storages.size(); ++i)
      if (state(static_cast<int>(i)).live) living.push_back(static_cast<int>(i));
    bring(living);
  }
  bool follows() const { return follows_; }

 private:
  void dropped(int, bool) override {}
  void fetch(int) override {}
  void discard(int) override {}
  void recompute(int number, int, bool) override { EXPECT_TRUE(op(number).again); }
  void made(int, Key, bool) override {}
  void forgotten(Key) override {}
  void freed(int) override {}
  void may_be_made(int, int) override {}
  void make_room(std::int64_t bytes) override {
    const auto at = static_cast<std::size_t>(executions());
    if (follows_ && at < plan_.drops.size())
      for (const auto& [number, stores] : plan_.drops[at]) drop_as_planned(number, stores);
    follows_ = follows_ && held() + bytes <= budget_;
    if (!follows_) evict(bytes);
  }
  std::int64_t held() const override { return bytes_; }
  double distance(int storage) override { return now_ - state(storage).last_use + 1; }
  bool gives_up() override { return executions() > 5 * static_cast<std::int64_t>(trace_.operators.size()) + 50; }

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
    make_room(its.result_bytes + its.scratch_bytes);
    reach(its.result_bytes + its.scratch_bytes);
    ran();
    for (const int each : overwritten) written(each);
    for (const int result : its.results) born(result);
    unpin(arguments);
  }

  const ActivationPlan& plan_;
  bool follows_ = true;
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
      // One after the other, so that every compiler draws the same.
      const bool repeats = random() % 8 != 0;
      const auto bytes = static_cast<std::int64_t>(16 + random() % 100);
      const auto nanoseconds = static_cast<std::int64_t>(random() % 5000);
      living.push_back(trace.makes(bytes, of, nanoseconds, repeats));
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
    for (const std::int64_t percent : {70, 40})
      for (const StoredWay way : {StoredWay(), kDisk}) {
        const auto plan = activation_plan(trace, all * percent / 100, seed, way);
        if (!plan) continue;
        ++met;
        SCOPED_TRACE(testing::Message() << seed << " at " << percent << (way ? " stored" : ""));
        EXPECT_LE(plan->peak, all * percent / 100);
        EXPECT_TRUE(stores_whole(*plan));
        OperatorTrace copy = trace;
        Following run(copy, *plan, all * percent / 100, way);
        EXPECT_NO_THROW(run.go());
        EXPECT_TRUE(run.follows());
        EXPECT_EQ(run.executions(), plan->executions);
        EXPECT_LE(run.peak(), plan->peak);
      }
  }
  EXPECT_GT(met, 200);
}

// Storages may end earlier than when the plan was made, or later: what was dropped comes back all the same, and what
// can be kept within the budget is.
TEST(ActivationPlans, AreFollowedWheneverStoragesEnd) {
  int again = 0, runs = 0, out_of_step = 0, beyond = 0;
  for (std::uint32_t seed = 1; seed <= 100; ++seed) {
    const OperatorTrace trace = micro_batch(seed);
    for (const StoredWay way : {StoredWay(), kDisk}) {
      const std::int64_t budget = unlimited_peak(trace) / 2;
      const auto plan = activation_plan(trace, budget, seed, way);
      if (!plan) continue;
      OperatorTrace other = trace;
      std::mt19937 random(seed);
      for (TracedStorage& each : other.storages) {
        const int used = each.readers.empty() ? each.writers.back() : each.readers.back();
        each.death = std::max(used + 1, each.death - 6 + static_cast<int>(random() % 13));
      }
      SCOPED_TRACE(testing::Message() << seed << (way ? " stored" : ""));
      Following run(other, *plan, budget, way);
      EXPECT_NO_THROW(run.go());
      ++runs;
      out_of_step += run.follows() ? 0 : 1;
      beyond += run.peak() > budget ? 1 : 0;
      again += static_cast<int>(run.so_far().again);
    }
  }
  EXPECT_GT(again, 1000);
  EXPECT_GT(out_of_step, runs / 2);
  EXPECT_LT(beyond, runs / 5);
}

}  // namespace zero::activation_plan_test
