#include "tier/arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace zero {
namespace {

constexpr std::size_t kPage = 4096;

TEST(Arena, GivesABlockAgain) {
  Arena arena(64 * kPage);
  void* const block = arena.take(3 * kPage + 1);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % kPage, 0u);
  std::memset(block, 7, 3 * kPage + 1);
  EXPECT_EQ(arena.give(block), 3 * kPage + 1);
  EXPECT_EQ(arena.usage().waiting, 4 * kPage);
  EXPECT_EQ(arena.take(4 * kPage), block);
  EXPECT_EQ(static_cast<const char*>(block)[3 * kPage], 7) << "the page went back to the system";
  EXPECT_EQ(arena.usage().waiting, 0u);
}

TEST(Arena, NeverHoldsMoreThanWasInUseAtOnce) {
  Arena arena(1024 * kPage);
  void* const small[] = {arena.take(kPage), arena.take(kPage), arena.take(kPage)};
  arena.give(small[0]);
  arena.give(small[2]);
  void* const large = arena.take(2 * kPage);
  EXPECT_EQ(arena.usage().live, 3 * kPage);
  EXPECT_EQ(arena.usage().waiting, 0u);
  EXPECT_EQ(arena.usage().peak, 3 * kPage);
  arena.give(large);
  arena.give(small[1]);
  EXPECT_EQ(arena.usage().waiting, 3 * kPage);
  arena.trim();
  EXPECT_EQ(arena.usage().waiting, 0u);
  EXPECT_EQ(arena.usage().peak, 0u);
}

TEST(Arena, ReturnsNullWhenItIsFull) {
  Arena arena(4 * kPage);
  void* const all = arena.take(4 * kPage);
  EXPECT_NE(all, nullptr);
  EXPECT_EQ(arena.take(1), nullptr);
  arena.give(all);
  EXPECT_NE(arena.take(4 * kPage), nullptr);
}

TEST(Arena, KnowsItsOwn) {
  Arena arena(4 * kPage);
  const int other = 0;
  char* const block = static_cast<char*>(arena.take(kPage));
  EXPECT_TRUE(arena.owns(block));
  EXPECT_FALSE(arena.owns(&other));
  EXPECT_FALSE(arena.owns(block + 4 * kPage));
}

// Blocks keep what was written to them, whatever comes and goes around them.
TEST(Arena, BlocksNeverOverlap) {
  struct Block {
    unsigned char* data;
    std::size_t size;
    unsigned char value;
  };
  Arena arena(4096 * kPage);
  std::mt19937 random(3);
  std::vector<Block> blocks;
  for (int i = 0; i < 4000; ++i) {
    if (blocks.size() < 40 && random() % 5 < 3) {
      const std::size_t size = 1 + random() % (20 * kPage);
      auto* const data = static_cast<unsigned char*>(arena.take(size));
      ASSERT_NE(data, nullptr);
      blocks.push_back({data, size, static_cast<unsigned char>(i)});
      std::memset(data, blocks.back().value, size);
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const auto [data, size, value] = blocks.back();
      blocks.pop_back();
      for (std::size_t at = 0; at < size; at += 97) ASSERT_EQ(data[at], value);
      EXPECT_EQ(arena.give(data), size);
    }
    const Arena::Usage usage = arena.usage();
    ASSERT_LE(usage.live + usage.waiting, usage.peak);
  }
}

}  // namespace
}  // namespace zero
