// What ranks move between tiers, against what was foreseen.
#pragma once

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string>

#include "ranks/harness.h"

namespace zero::test {

// Each figure that of the rank that moves most. Thread-safe.
class Most {
 public:
  void take(const TierTraffic& moved) {
    const std::lock_guard lock(mutex_);
    for (std::size_t tier = 0; tier < moved.below.size(); ++tier)
      for (std::size_t state = 0; state < moved.below[tier].size(); ++state) {
        TierTraffic::Entry& entry = most_.below[tier][state];
        entry.read = std::max(entry.read, moved.below[tier][state].read);
        entry.written = std::max(entry.written, moved.below[tier][state].written);
      }
  }
  const TierTraffic& of_all() const { return most_; }

 private:
  std::mutex mutex_;
  TierTraffic most_;
};

inline std::string text_of(const TierTraffic& moved) {
  std::string text;
  for (const Tier tier : {Tier::host, Tier::disk})
    for (int i = 0; i < kStates; ++i) {
      const auto state = static_cast<State>(i);
      const TierTraffic::Entry& entry = moved.on(tier, state);
      if (entry == TierTraffic::Entry{}) continue;
      text += std::string(name(tier)) + " " + std::string(name(state)) + ": read " + std::to_string(entry.read) +
              ", written " + std::to_string(entry.written) + "; ";
    }
  return text;
}

// In the third step, which is applied.
template <class Model>
void expect_moved_as_estimated(const Job& job, const Course<Model>& course) {
  Most measured;
  std::optional<TierTraffic> predicted;
  on_ranks<Model>(job, course, [&](Model& model, Engine& engine, int rank) {
    for (int step = 0; step < 2; ++step) train_step(model, engine);
    engine.reset_traffic();
    ASSERT_TRUE(train_step(model, engine).applied);
    measured.take(engine.tier_traffic());
    if (rank == 0) predicted = engine.estimate().moved.step();
  });
  ASSERT_TRUE(predicted.has_value());
  EXPECT_TRUE(measured.of_all() == *predicted)
      << "measured " << text_of(measured.of_all()) << "\npredicted " << text_of(*predicted);
}

}  // namespace zero::test
