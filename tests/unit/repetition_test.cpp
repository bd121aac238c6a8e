#include "analysis/repetition.h"

#include <gtest/gtest.h>

#include <random>
#include <unordered_map>

#include "analysis/address_numbers.h"

namespace zero::repetition_test {

constexpr Running kMatmul{1}, kAdd{2}, kRelu{3};

// The sizes, and what runs.
using Allocations = std::vector<std::pair<std::int64_t, Running>>;

const Allocations kForward{{100, kMatmul}, {100, kAdd}, {64, kRelu}};
const Allocations kLonger{{100, kMatmul}, {900, kAdd}, {64, kRelu}};

void listen(Repetition& repetition, const Allocations& round) {
  for (const auto& [bytes, running] : round) repetition.add({bytes, nullptr}, running);
}

void expect_foretold(Repetition& repetition, const Allocations& round) {
  for (const auto& [bytes, running] : round) {
    const Running* const foretold = repetition.next({bytes, nullptr});
    ASSERT_NE(foretold, nullptr) << running.operation;
    EXPECT_EQ(*foretold, running);
  }
}

TEST(Repetition, IsSureAfterTwoRoundsLikeEarlierOnes) {
  Repetition repetition;
  for (const bool sure : {false, false, true}) {
    listen(repetition, kForward);
    EXPECT_EQ(repetition.end_round(), sure);
  }
  for (int round = 0; round < 3; ++round) {
    expect_foretold(repetition, kForward);
    EXPECT_TRUE(repetition.end_round());
  }
}

TEST(Repetition, TellsTheOneOfSeveralRoundsThatBeganLikeThis) {
  Repetition repetition;
  for (const Allocations* round : {&kForward, &kLonger, &kForward, &kLonger}) {
    listen(repetition, *round);
    repetition.end_round();
  }
  for (const Allocations* round : {&kForward, &kLonger, &kLonger, &kForward}) {
    expect_foretold(repetition, *round);
    EXPECT_TRUE(repetition.end_round());
  }
}

TEST(Repetition, ARoundThatDepartsIsListenedToNextTime) {
  Repetition repetition;
  listen(repetition, kForward);
  repetition.end_round();
  EXPECT_NE(repetition.next({100, nullptr}), nullptr);
  EXPECT_EQ(repetition.next({900, nullptr}), nullptr);
  repetition.add({64, nullptr}, kRelu);
  EXPECT_FALSE(repetition.end_round());
  listen(repetition, kLonger);
  EXPECT_FALSE(repetition.end_round());
  expect_foretold(repetition, kLonger);
  EXPECT_FALSE(repetition.end_round());
}

// As the analyzer does it. How many allocations were listened to, and how many departed.
struct Heard {
  int listened = 0, departed = 0;
};
Heard hear(Repetition& repetition, bool& listening, const Allocations& round) {
  Heard heard;
  for (const auto& [bytes, running] : round) {
    if (listening) {
      repetition.add({bytes, nullptr}, running);
      ++heard.listened;
    } else if (repetition.next({bytes, nullptr}) == nullptr) {
      listening = true;
      ++heard.departed;
    }
  }
  listening = !repetition.end_round();
  return heard;
}

// Gradient accumulation: the round with the step comes once, those without it several times.
TEST(Repetition, LearnsRoundsThatTakeTurns) {
  for (const int others : {1, 3, 7}) {
    Repetition repetition;
    bool listening = true;
    int departed = 0;
    for (int step = 0; step < 40; ++step) {
      int listened = 0;
      for (int micro = 0; micro <= others; ++micro) {
        const Heard heard = hear(repetition, listening, micro == 0 ? kLonger : kForward);
        departed += heard.departed;
        listened += heard.listened;
      }
      EXPECT_TRUE(step < 12 || listened == 0) << others << " others, step " << step;
    }
    EXPECT_LE(departed, 4) << others;
  }
}

TEST(Repetition, TheSameSizeInAnotherNodeIsAnother) {
  Repetition repetition;
  const int node = 0;
  repetition.add({100, &node}, kMatmul);
  repetition.end_round();
  EXPECT_EQ(repetition.next({100, nullptr}), nullptr);
  repetition.end_round();
  EXPECT_NE(repetition.next({100, &node}), nullptr);
}

TEST(Repetition, AShorterRoundAndALongerOneAreNotWhatWasSeen) {
  Repetition repetition;
  listen(repetition, kForward);
  repetition.end_round();
  EXPECT_NE(repetition.next({100, nullptr}), nullptr);
  EXPECT_FALSE(repetition.end_round());
  expect_foretold(repetition, kForward);
  EXPECT_EQ(repetition.next({1, nullptr}), nullptr);
  EXPECT_FALSE(repetition.end_round());
}

TEST(Repetition, KeepsWithinBounds) {
  Repetition repetition;
  for (int round = 0; round < 200; ++round) {
    repetition.add({round, nullptr}, kMatmul);
    EXPECT_FALSE(repetition.end_round());
  }
  EXPECT_NE(repetition.next({199, nullptr}), nullptr);
  repetition.end_round();
  EXPECT_EQ(repetition.next({0, nullptr}), nullptr);
  repetition.end_round();
  for (int i = 0; i < (1 << 16) + 10; ++i) repetition.add({7, nullptr}, kMatmul);
  EXPECT_FALSE(repetition.end_round());
  EXPECT_EQ(repetition.next({7, nullptr}), nullptr);
}

TEST(Places, AreAMap) {
  std::mt19937 random(7);
  static const char memory[1 << 14] = {};
  Places places;
  std::unordered_map<const void*, std::uint32_t> expected;
  for (std::uint32_t i = 0; i < 200'000; ++i) {
    const void* const address = memory + random() % sizeof(memory);
    if (expected.erase(address) > 0) {
      places.remove(address);
    } else {
      places.add(address, i);
      expected[address] = i;
    }
  }
  EXPECT_GT(expected.size(), 4000u);
  for (const char& each : memory) {
    const auto found = expected.find(&each);
    EXPECT_EQ(places.find(&each), found == expected.end() ? std::nullopt : std::optional(found->second));
  }
}

}  // namespace zero::repetition_test
