// What holds of a training whatever it is set to: its bits and its bytes, for every row of the table of settings.
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "backwards/observer.h"
#include "contracts.h"
#include "covering.h"
#include "most_moved.h"
#include "partition/residency.h"
#include "partition/routes.h"
#include "traffic_text.h"

namespace zero::test::contracts_test {

using Done = std::map<std::pair<std::string, int>, int>;  // how often, by activity and unit

// Of the activities that move a unit.
class Log : public EngineObserver {
 public:
  void booked(Owner, int, std::int64_t) override {}
  void adopted(const void*) override {}
  int began(Activity activity, int unit) override {
    const std::lock_guard lock(mutex_);
    if (activity == Activity::gather || activity == Activity::reduce || activity == Activity::publish)
      if (unit >= 0) ++done_[{std::string(name(activity)), unit}];
    return 0;
  }
  void ended(int) noexcept override {}
  // How often a unit is gathered depends on what stays resident: that it is.
  Done done() const {
    const std::lock_guard lock(mutex_);
    Done done = done_;
    for (auto& [what, times] : done)
      if (what.first == "gather") times = 1;
    return done;
  }

 private:
  mutable std::mutex mutex_;
  Done done_;
};

Done listed(const Plan& plan, const Layout& layout) {
  Done done;
  const Plan resolved = plan.on(layout.mesh());
  for (std::size_t unit = 0; unit < layout.units().size(); ++unit)
    for (const Transition& each : Routes(resolved).of(layout.units()[unit])) {
      const char* const activity = each.when == When::use ? "gather" : each.when == When::update ? "publish" : "reduce";
      const int times = each.when == When::gradient ? plan.accumulate() : 1;
      if (!each.joined) done[{activity, static_cast<int>(unit)}] += times;
    }
  return done;
}

// What one rank sees of a training.
struct Seen {
  Ledger from_the_start, of_a_step;  // the latter's peaks are those of the last step
  Estimate estimate;
  std::int64_t budget = 0;
  Traffic sent;              // in the last step
  bool not_updated = false;  // between the forwards before it, gradients having overflowed: kept copies stay
  TierTraffic before_steps, moved;
  Done done, listed;

  // What it had gathered before, it still has.
  bool kept_through(const Setting& setting) const { return not_updated && setting.kept != KeptCopy::none; }
};

struct Training {
  Outcome outcome;
  std::vector<Seen> ranks;
};

// Of parameters paged in: what the plan gives, but one unit at least; else two units, or three where one more is on its
// way, from another tier or from other hosts.
std::int64_t budget_of(const Engine& engine) {
  std::vector<std::int64_t> bytes;
  for (const UnitLayout& unit : engine.layout().units()) bytes.push_back(unit.bytes());
  std::ranges::sort(bytes, std::greater());
  const std::int64_t given = engine.plan().resident_budget();
  if (given > 0) return std::max(given, bytes[0]);
  const Plan plan = engine.plan().on(engine.layout().mesh(), engine.topologies().of_words(Axis::data).ranks_per_host);
  const bool third = plan[State::parameter].tier != Tier::device || units_ahead(plan) == 2;
  return bytes[0] + bytes[1] + (third ? bytes[2] : 0);
}

void observed_step(Lm& model, Engine& engine, Outcome& run, Seen& seen) {
  static_cast<void>(engine.traffic());  // waits for what is under way
  const auto log = std::make_shared<Log>();
  engine.observe(log);
  seen.from_the_start = engine.ledger();
  engine.reset_peaks();
  engine.reset_traffic();
  run.record(step_of(model, engine, kSteps - 1));
  seen.sent = engine.traffic();
  seen.moved = engine.tier_traffic();
  seen.of_a_step = engine.ledger();
  seen.estimate = engine.estimate();
  seen.budget = budget_of(engine);
  seen.done = log->done();
  seen.listed = listed(engine.plan(), engine.layout());
}

Training train_by_setting(const Setting& setting) {
  Training training{{}, std::vector<Seen>(static_cast<std::size_t>(setting.ranks.count))};
  training.outcome =
      train_by(setting.job(), lm_with_dropout(0.2), [&](Lm& model, Engine& engine, Outcome& run, int rank) {
        Seen& seen = training.ranks[static_cast<std::size_t>(rank)];
        seen.before_steps = engine.setup_tier_traffic();
        for (int step = 0; step < kSteps - 1; ++step) {
          const StepReport report = step_of(model, engine, step);
          seen.not_updated |= report.skipped && step >= kSteps - 3;  // of two steps, where updates are late
          run.record(report);
        }
        observed_step(model, engine, run, seen);
      });
  return training;
}

// Many rows have one reference.
const Outcome& outcome_of(const Setting& reference) {
  static std::map<std::string, Outcome> all;
  const std::string title = reference.title();
  if (!all.contains(title)) all.emplace(title, train_by_setting(reference).outcome);
  return all.at(title);
}

void expect_the_bits_of_the_reference(const Setting& setting, const Training& training) {
  const Setting reference = setting.reference();
  EXPECT_EQ(difference(outcome_of(reference), training.outcome), "") << reference.title();
}

void expect_states_held(const Setting& setting, Tier tier, const std::vector<Seen>& ranks) {
  std::int64_t most = 0;
  const StateBytes expected = ranks.front().estimate.on(tier);
  for (const Seen& each : ranks) {
    EXPECT_EQ(each.from_the_start.on(tier, Owner::parameter).peak, expected.parameter);
    EXPECT_EQ(each.of_a_step.on(tier, Owner::parameter).bytes, expected.parameter);
    EXPECT_EQ(each.from_the_start.on(tier, Owner::gradient).peak, expected.gradient);
    EXPECT_EQ(each.of_a_step.on(tier, Owner::gradient).bytes, expected.gradient);
    EXPECT_LE(each.from_the_start.on(tier, Owner::optimizer).peak, expected.optimizer);
    most = std::max(most, each.of_a_step.on(tier, Owner::optimizer).bytes);
  }
  // A share may leave most on one rank, and have most elsewhere of another.
  if (setting.share == 1) {
    EXPECT_EQ(most, expected.optimizer);
  }
  EXPECT_LE(most, expected.optimizer);
}

void expect_buffers_held(const Setting& setting, const Seen& seen) {
  const Estimate& estimate = seen.estimate;
  const Ledger& ledger = seen.of_a_step;
  EXPECT_EQ(ledger[Owner::gathered].peak, estimate.held[Owner::gathered].peak);
  if (setting.gather_in == Wire::native && setting.kept == KeptCopy::none) {
    EXPECT_LE(ledger[Owner::gathered].peak, seen.budget);
  }
  EXPECT_LE(ledger[Owner::reduction].peak, estimate.held[Owner::reduction].peak);
  EXPECT_LE(ledger[Owner::update].peak, estimate.held[Owner::update].peak);
  EXPECT_LE(ledger.on(Tier::host, Owner::update).peak, estimate.held.on(Tier::host, Owner::update).peak);
  if (setting.states_on(Tier::device).size() == 3) {
    EXPECT_EQ(ledger[Owner::update].bytes, estimate.held[Owner::update].peak);
  }
  if (setting.parameter != Tier::host) {
    EXPECT_EQ(estimate.held.on(Tier::host, Owner::parameter).bytes > 0, setting.delays && on_devices());
  }
  EXPECT_LE(ledger.peak_held, estimate.held.peak_held);
  // In the first backward nobody knows in which order units are completed, and more of them may wait at once: on the
  // CPU in the room of what an update passes through, which is no memory of a device.
  const std::int64_t waits = seen.from_the_start[Owner::reduction].peak - ledger[Owner::reduction].peak;
  if (setting.states_on(Tier::device).size() < 3) {
    EXPECT_LE(seen.from_the_start.peak_held,
              estimate.held.peak_held + (on_devices() ? std::max<std::int64_t>(waits, 0) : 0));
  }
}

void expect_the_bytes_of_the_estimate(const Setting& setting, const std::vector<Seen>& ranks) {
  for (const Tier tier : {Tier::device, Tier::host, Tier::disk}) {
    SCOPED_TRACE(name(tier));
    expect_states_held(setting, tier, ranks);
  }
  for (const Seen& each : ranks) expect_buffers_held(setting, each);
}

void expect_moved_between_tiers_what_was_foreseen(const Setting& setting, const std::vector<Seen>& ranks) {
  Most moved;
  for (const Seen& each : ranks) moved.take(each.moved);
  EXPECT_EQ(text_of(moved.of_all()), text_of(ranks.front().estimate.moved.step()));
  if (setting.states_on(Tier::device).size() < 3) return;
  EXPECT_EQ(moved.of_all(), TierTraffic{});
  EXPECT_EQ(ranks.front().before_steps, TierTraffic{});
}

void expect_sent_what_was_foreseen(const Setting& setting, const std::vector<Seen>& seen) {
  const Ranks& ranks = setting.ranks;
  const bool several = 0 < ranks.per_host && ranks.per_host < ranks.count;
  const bool within_hosts = !several || (0 < ranks.shard && ranks.shard <= ranks.per_host);
  for (const Seen& each : seen) {
    if (each.kept_through(setting)) {
      EXPECT_LE(each.sent[Collective::all_gather].bytes, each.estimate.wire[Collective::all_gather].bytes);
    } else {
      EXPECT_EQ(text_of(each.sent), text_of(each.estimate.wire));
      EXPECT_TRUE(each.sent == each.estimate.wire);
    }
    EXPECT_EQ(each.sent.across_hosts() > 0, several);
    EXPECT_EQ(each.sent.within_host() > 0, ranks.count > 1);
    EXPECT_LE(each.sent.in_place(), within_hosts ? each.sent.within_host() : 0);
  }
}

void expect_done_what_was_listed(const Setting& setting, const std::vector<Seen>& ranks) {
  for (Seen each : ranks) {
    if (each.kept_through(setting))
      for (Done* const some : {&each.done, &each.listed})
        std::erase_if(*some, [](const auto& operation) { return operation.first.first == "gather"; });
    EXPECT_EQ(each.done, each.listed);
  }
}

// Those in memory have what the optimizer keeps elsewhere all the same.
LateStates late_states(const Setting& setting) {
  const LateStates states = setting.states_on(Tier::disk);
  return states.empty() ? LateStates{State::optimizer} : states;
}

void expect_the_same_bits_whatever_the_delays(const Setting& setting, const Training& expected) {
  const LateStates late = late_states(setting);
  const bool any = late != LateStates{State::optimizer} || expected.ranks.front().estimate.state.optimizer > 0;
  for (std::uint64_t seed = 0; seed < (on_devices() && long_tests() ? 20u : 1u); ++seed) {
    const Delays delays(late, any);
    surroundings().delay(seed);
    const Outcome outcome =
        train_by(setting.job(), delays.on(lm_with_dropout(0.2)), [](Lm& model, Engine& engine, Outcome& run, int) {
          for (int step = 0; step < kSteps; ++step) run.record(step_of(model, engine, step));
        });
    EXPECT_EQ(difference(expected.outcome, outcome), "") << "seed " << seed;
    surroundings().delay({});
    if (std::ranges::count(late, State::parameter) == 0) {
      EXPECT_LE(delays.most(), 3 * 5 * LateStore::kTransfer);
    }
  }
}

class Settings : public testing::TestWithParam<Setting> {};

// A row is one test, since all its contracts are of one training, and a part of the tests is then a part of the rows.
TEST_P(Settings, KeepEveryContract) {
  const Setting& setting = GetParam();
  const Training training = train_by_setting(setting);
  expect_the_bits_of_the_reference(setting, training);
  expect_the_bytes_of_the_estimate(setting, training.ranks);
  expect_moved_between_tiers_what_was_foreseen(setting, training.ranks);
  expect_sent_what_was_foreseen(setting, training.ranks);
  expect_done_what_was_listed(setting, training.ranks);
  // What is late in memory alone is late on no device.
  if (!on_devices() || setting.states_on(Tier::device).size() < 3)
    expect_the_same_bits_whatever_the_delays(setting, training);
}

INSTANTIATE_TEST_SUITE_P(All, Settings, testing::ValuesIn(settings()),
                         [](const auto& tested) { return tested.param.title(); });

TEST(Settings, ThatCannotBeAreRefusedByName) {
  for (const Setting& setting : refused_settings()) {
    const std::string told = thrown_by([&] { on_ranks<Lm>(setting.job(), {}, [](Lm&, Engine&, int) {}); });
    EXPECT_TRUE(says(told, setting.faults())) << setting.title();
  }
}

}  // namespace zero::test::contracts_test
