// Where blocks of known lifetimes lie: apart, and not higher than they must.
#include "memory/address_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/elements.h"
#include "memory/block_places.h"
#include "planner/llama_step.h"

namespace zero::address_plan_test {

// Blocks of random sizes, of which some go soon, some late and some never.
std::vector<Lifetime> random_blocks(unsigned seed, int events) {
  std::mt19937 random(seed);
  std::vector<Lifetime> blocks;
  std::vector<std::size_t> live;
  for (int event = 0; event < events; ++event) {
    if (live.size() < 60 && (live.empty() || random() % 2 == 0)) {
      live.push_back(blocks.size());
      blocks.push_back({static_cast<std::int64_t>(random() % 3 == 0 ? random() % 200 : random() % 100000), event});
    } else {
      std::swap(live[random() % 4 == 0 ? random() % live.size() : live.size() - 1], live.back());
      blocks[live.back()].end = event;
      live.pop_back();
    }
  }
  return blocks;
}

void expect_apart(const std::vector<Lifetime>& blocks, const AddressPlan& plan) {
  ASSERT_EQ(plan.offsets.size(), blocks.size());
  const auto end = [&](std::size_t i) { return plan.offsets[i] + round_up(blocks[i].bytes, kBlockStep); };
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const bool has_place = blocks[i].bytes > 0 && blocks[i].end != Lifetime::kStays;
    ASSERT_EQ(plan.offsets[i] >= 0, has_place) << i;
    if (!has_place) continue;
    ASSERT_EQ(plan.offsets[i] % kBlockStep, 0) << i;
    ASSERT_LE(end(i), plan.height) << i;
    for (std::size_t j = 0; j < i; ++j) {
      if (plan.offsets[j] < 0 || blocks[j].end < blocks[i].begin || blocks[i].end < blocks[j].begin) continue;
      ASSERT_TRUE(end(i) <= plan.offsets[j] || end(j) <= plan.offsets[i]) << i << " and " << j;
    }
  }
}

TEST(AddressPlan, BlocksThatLiveAtOnceAreApart) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::vector<Lifetime> blocks = random_blocks(seed, 1500);
    const AddressPlan plan = plan_addresses(blocks);
    expect_apart(blocks, plan);
    EXPECT_GE(plan.height, largest_live_sum(blocks));
    EXPECT_LE(static_cast<double>(plan.height), 1.2 * static_cast<double>(largest_live_sum(blocks))) << seed;
  }
}

TEST(AddressPlan, OfManyBlocksTheyAreToo) {
  const std::vector<Lifetime> blocks = random_blocks(1, 12000);
  expect_apart(blocks, plan_addresses(blocks));
}

TEST(AddressPlan, IsOfTheBlocksAlone) {
  const std::vector<Lifetime> blocks = random_blocks(7, 1000);
  const AddressPlan plan = plan_addresses(blocks), again = plan_addresses(blocks);
  EXPECT_EQ(plan.offsets, again.offsets);
  EXPECT_EQ(plan.height, again.height);
}

// By hand: of three the second goes first; two that follow take its place, and the one that stays has none.
TEST(AddressPlan, APlaceIsUsedAgain) {
  const std::vector<Lifetime> blocks = {
      {640, 0, 9}, {1280, 1, 3}, {64, 2, 8}, {1, 4, 7}, {1200, 5, 6}, {0, 6, 7}, {1000, 7, Lifetime::kStays}};
  const AddressPlan plan = plan_addresses(blocks);
  expect_apart(blocks, plan);
  EXPECT_EQ(largest_live_sum(blocks), 640 + 1280 + 64 + 0);
  EXPECT_EQ(plan.height, 640 + 1280 + 64 + 0);
  EXPECT_EQ(plan_addresses({}).height, 0);
}

// The blocks of the planner's model, of which one that goes is the latest of its size.
class Recorded final : public planner::StepListener {
 public:
  void hold(const planner::Block& made) override {
    live_[made.bytes].push_back(blocks.size());
    blocks.push_back({made.bytes, event_++});
  }
  // Several may go at once.
  void drop(const planner::Block& block) override {
    if (auto& alike = live_[block.bytes]; !alike.empty()) {
      blocks[alike.back()].end = event_++;
      alike.pop_back();
    }
  }

  std::vector<Lifetime> blocks;

 private:
  std::map<std::int64_t, std::vector<std::size_t>> live_;
  int event_ = 0;
};

// Of micro-batches of models, in fp32 and 16 bits: M_D's bound.
TEST(AddressPlan, OfAMicroBatchIsAsHighAsWhatLivesAtOnce) {
  for (const char* const preset : {"micro", "tiny", "small", "7b"})
    for (const Precision precision : {Precision::fp32, Precision::bf16})
      for (const std::int64_t seq : {32, 256, 1000}) {
        Recorded recorded;
        planner::walk({.config = models::llama_preset(preset), .batch = 2, .seq = seq, .precision = precision},
                      recorded);
        const std::int64_t least = largest_live_sum(recorded.blocks);
        EXPECT_GT(least, 0);
        EXPECT_LE(static_cast<double>(plan_addresses(recorded.blocks).height), 1.05 * static_cast<double>(least))
            << preset << " " << seq;
      }
}

// Whoever lay on a byte last is among those before, and has gone when the block comes.
TEST(BlockPlaces, KnowWhatLayThereBefore) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    const std::vector<Lifetime> blocks = random_blocks(seed, 1000);
    const BlockPlaces places(blocks);
    std::map<std::int64_t, int> last;  // by step
    for (int block = 0; block < places.count(); ++block) {
      std::vector<int> before;
      if (places.offset(block) >= 0)
        for (std::int64_t at = places.offset(block); at < places.offset(block) + places.bytes(block);
             at += kBlockStep) {
          if (last.contains(at)) before.push_back(last[at]);
          last[at] = block;
        }
      std::ranges::sort(before);
      before.erase(std::unique(before.begin(), before.end()), before.end());
      ASSERT_TRUE(std::ranges::equal(before, places.before(block))) << seed << " " << block;
      for (const int each : before)
        EXPECT_LT(blocks[static_cast<std::size_t>(each)].end, blocks[static_cast<std::size_t>(block)].begin);
      if (places.offset(block) >= 0) {
        EXPECT_EQ(places.start(block), places.start_at(places.offset(block)));
      }
    }
  }
}

}  // namespace zero::address_plan_test
