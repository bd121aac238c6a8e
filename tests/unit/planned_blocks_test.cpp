// Micro-batches that come again, whose blocks lie where a plan says; and those that do not.
#include "memory/planned_blocks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "memory/arena.h"

namespace zero::planned_blocks_test {

constexpr std::size_t kLot = std::size_t{1} << 22;

class PlannedMicroBatches : public testing::Test {
 protected:
  struct Held {
    void* data;
    std::size_t bytes;
    unsigned char value;
  };

  // In its place, or elsewhere; each block is filled with a value of its own.
  Held take(std::size_t bytes) {
    void* data = blocks_->take(bytes);
    if (data != nullptr) {
      ++placed_;
      EXPECT_TRUE(lots_.owns(data));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % kBlockStep, 0u);
    } else {
      data = ::operator new(bytes);
      blocks_->took(data);
    }
    const Held held{data, bytes, ++value_};
    std::memset(held.data, held.value, bytes);
    return held;
  }
  void give(const Held& held) {
    for (std::size_t i = 0; i < held.bytes; ++i) ASSERT_EQ(static_cast<unsigned char*>(held.data)[i], held.value) << i;
    if (lots_.owns(held.data)) {
      EXPECT_EQ(lots_.give(held.data), held.bytes);
    } else {
      ::operator delete(held.data);
    }
  }
  void end(const Held& held) {
    blocks_->freed(held.data);
    give(held);
  }

  // Blocks that come and go by chance, all of which go. Returns how many were placed.
  int micro_batch(unsigned seed, int steps = 300) {
    blocks_->begin();
    const int before = placed_;
    std::mt19937 random(seed);
    std::vector<Held> held;
    for (int i = 0; i < steps; ++i) {
      if (held.empty() || random() % 2 == 0) {
        held.push_back(take(1 + random() % 3000));
        continue;
      }
      std::swap(held[random() % held.size()], held.back());
      end(held.back());
      held.pop_back();
    }
    for (const Held& each : held) end(each);
    return placed_ - before;
  }

  Arena arena_{Arena::system_page(), Arena::system_page(), AddressLots::kLots* kLot};
  AddressLots lots_{arena_.beside(), AddressLots::kLots* kLot, Arena::system_page()};
  std::unique_ptr<PlannedBlocks> blocks_ = std::make_unique<PlannedBlocks>(lots_);
  int placed_ = 0;

 private:
  unsigned char value_ = 0;
};

TEST_F(PlannedMicroBatches, ThatCameTwiceArePlaced) {
  EXPECT_EQ(micro_batch(1), 0);
  EXPECT_EQ(micro_batch(1), 0);
  const int all = micro_batch(1);
  EXPECT_GT(all, 100);
  EXPECT_EQ(micro_batch(1), all);
  EXPECT_EQ(lots_.usage().live, 0);
  EXPECT_GT(lots_.usage().held, 0);
}

// As high as what lives at once, and not more with each.
TEST_F(PlannedMicroBatches, HoldWhatOneTakes) {
  for (int i = 0; i < 3; ++i) micro_batch(1);
  const std::int64_t held = lots_.usage().held;
  for (int i = 0; i < 20; ++i) micro_batch(1);
  EXPECT_EQ(lots_.usage().held, held);
  blocks_.reset();
  EXPECT_EQ(lots_.usage().held, 0);
}

TEST_F(PlannedMicroBatches, ThatAlternateHaveAPlanEach) {
  for (int i = 0; i < 3; ++i)
    for (const unsigned shape : {1u, 2u, 3u}) micro_batch(shape);
  for (int i = 0; i < 3; ++i)
    for (const unsigned shape : {1u, 2u, 3u}) EXPECT_GT(micro_batch(shape), 100) << shape;
}

// The first blocks are those of the plan, then others: the rest comes from elsewhere, and the next one goes by its
// plan.
TEST_F(PlannedMicroBatches, ThatDifferAreLeftAlone) {
  for (int i = 0; i < 3; ++i) micro_batch(1);
  EXPECT_LT(micro_batch(2), 10);
  EXPECT_FALSE(blocks_->follows());
  EXPECT_GT(micro_batch(1), 100);
  EXPECT_GT(micro_batch(1, 100), 20) << "those of its beginning";
  for (unsigned seed = 10; seed < 40; ++seed) EXPECT_LT(micro_batch(seed), 10);
  EXPECT_EQ(lots_.usage().live, 0);
}

TEST_F(PlannedMicroBatches, ThatGoOnBeyondTheirPlanAreLeftAlone) {
  for (int i = 0; i < 3; ++i) micro_batch(1, 100);
  const int all = micro_batch(1, 100);
  EXPECT_LE(micro_batch(1, 300), all + 50);
  EXPECT_FALSE(blocks_->follows());
}

// Sizes as planned, but a block goes later than in the record: nothing is placed on it.
TEST_F(PlannedMicroBatches, NothingIsPlacedOnWhatLives) {
  const auto two_after_one = [&](bool late) {
    blocks_->begin();
    const Held first = take(1000);
    if (!late) end(first);
    const Held second = take(1000), third = take(500);
    if (late) {
      EXPECT_FALSE(lots_.owns(second.data));
      EXPECT_FALSE(lots_.owns(third.data)) << "what is behind goes elsewhere too";
      end(first);
    } else if (placed_ > 0) {
      EXPECT_EQ(first.data, second.data);
    }
    end(third);
    end(second);
  };
  for (int i = 0; i < 3; ++i) two_after_one(false);
  EXPECT_EQ(placed_, 3);
  two_after_one(true);
  EXPECT_EQ(placed_, 4);
  two_after_one(false);
  EXPECT_EQ(placed_, 7) << "the next one by the plan again";
}

// What stays beyond its micro-batch has no place.
TEST_F(PlannedMicroBatches, WhatStaysIsNotOfThePlan) {
  std::vector<Held> kept;
  for (int i = 0; i < 4; ++i) {
    blocks_->begin();
    const Held goes = take(100);
    kept.push_back(take(200));
    end(goes);
  }
  EXPECT_EQ(placed_, 2);
  for (const Held& each : kept) EXPECT_FALSE(lots_.owns(each.data));
  for (const Held& each : kept) give(each);
}

// A block that stays where in the record it went keeps others from the range until it goes; if it never does, there is
// another range.
TEST_F(PlannedMicroBatches, ARangeIsNotUsedWhileSomethingLivesInIt) {
  for (int i = 0; i < 3; ++i) micro_batch(1);
  blocks_->begin();
  std::mt19937 random(1);
  const Held kept = take(1 + random() % 3000);
  ASSERT_TRUE(lots_.owns(kept.data));
  int without = 0;
  while (micro_batch(1) == 0) ASSERT_LT(++without, 100);
  EXPECT_GT(without, 2);
  blocks_.reset();
  EXPECT_GT(lots_.usage().held, 0) << "what lives has its pages";
  give(kept);
  EXPECT_EQ(lots_.usage().held, 0);
}

// As where an exchange's thread frees what it has sent; under the thread sanitizer too. What goes elsewhere is of no
// plan, where it was not in the record either.
TEST_F(PlannedMicroBatches, BlocksGoOnAnyThread) {
  const auto micro_batch = [&](bool elsewhere) {
    blocks_->begin();
    std::vector<Held> held;
    for (std::size_t j = 1; j <= 40; ++j) held.push_back(take(j * 100));
    std::thread other([&] {
      for (std::size_t j = 0; j < held.size(); j += 2)
        if (elsewhere) give(held[j]);
    });
    for (std::size_t j = 1; j < held.size(); j += 2) end(held[j]);
    other.join();
    for (std::size_t j = 0; j < held.size(); j += 2)
      if (!elsewhere) end(held[j]);
  };
  for (int i = 0; i < 3; ++i) micro_batch(false);
  EXPECT_EQ(placed_, 40);
  micro_batch(true);
  EXPECT_EQ(placed_, 80) << "what goes elsewhere has its place too";
  EXPECT_EQ(lots_.usage().live, 0);
  for (int i = 0; i < 30; ++i) micro_batch(true);
  EXPECT_EQ(placed_, 80 + 40 + 29 * 20) << "a plan without them";
  EXPECT_EQ(lots_.usage().live, 0);
}

// All lots have owners: who comes then has no range, until one goes.
TEST_F(PlannedMicroBatches, LotsAreUsedAgain) {
  std::vector<PlannedRange*> all;
  while (PlannedRange* const range = PlannedRange::of(lots_)) all.push_back(range);
  EXPECT_EQ(all.size(), AddressLots::kLots);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(micro_batch(1), 0);
  all.back()->let_go();
  all.pop_back();
  EXPECT_GT(micro_batch(1), 100);
  for (PlannedRange* const each : all) each->let_go();
}

// A plan that is higher than a lot is not used.
TEST_F(PlannedMicroBatches, TooMuchIsNotPlaced) {
  for (int i = 0; i < 4; ++i) {
    blocks_->begin();
    std::vector<Held> held;
    for (std::size_t j = 0; j < 50; ++j) held.push_back(take(kLot / 40));
    for (const Held& each : held) end(each);
  }
  EXPECT_EQ(placed_, 0);
}

// More blocks than are recorded.
TEST_F(PlannedMicroBatches, TooManyAreNotPlanned) {
  for (int i = 0; i < 4; ++i) {
    blocks_->begin();
    for (std::size_t j = 0; j <= AllocationRecord::kMost; ++j) end(take(8));
  }
  EXPECT_EQ(placed_, 0);
}

}  // namespace zero::planned_blocks_test
