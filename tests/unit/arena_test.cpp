#include "memory/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

// What a kernel of other pages would do with MADV_DONTNEED; 0: the machine's own.
struct {
  std::size_t page = 0;
  std::size_t dropped = 0;  // bytes
  int refused = 0;
} emulated;

}  // namespace

// In the C library's place, for this program: refuses what does not start at a page, and drops whole ones.
extern "C" int madvise(void* address, size_t length, int advice) noexcept {
  if (advice == MADV_DONTNEED && emulated.page != 0) {
    if (reinterpret_cast<std::uintptr_t>(address) % emulated.page != 0) {
      ++emulated.refused;
      errno = EINVAL;
      return -1;
    }
    length = (length + emulated.page - 1) / emulated.page * emulated.page;
    emulated.dropped += length;
  }
  return static_cast<int>(syscall(SYS_madvise, address, length, advice));
}

namespace zero::arena_test {

const std::size_t kPage = Arena::system_page();

class KernelOf {
 public:
  explicit KernelOf(std::size_t page) { emulated = {page, 0, 0}; }
  ~KernelOf() { emulated = {}; }
  KernelOf(const KernelOf&) = delete;
  KernelOf& operator=(const KernelOf&) = delete;

  std::size_t dropped() const { return emulated.dropped; }
  int refused() const { return emulated.refused; }
};

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

struct Block {
  unsigned char* data;
  std::size_t size;
  unsigned char value;

  bool intact() const {
    return std::all_of(data, data + size, [&](unsigned char each) { return each == value; });
  }
};

// Blocks come and go at random, each filled with a value of its own; the arena stays within the peak.
void keeps_patterns(Arena& arena, std::size_t page) {
  std::mt19937 random(3);
  std::vector<Block> blocks;
  for (int i = 0; i < 4000; ++i) {
    if (blocks.size() < 40 && random() % 5 < 3) {
      const std::size_t size = 1 + random() % (20 * kPage);
      auto* const data = static_cast<unsigned char*>(arena.take(size));
      ASSERT_NE(data, nullptr);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(data) % page, 0u);
      blocks.push_back({data, size, static_cast<unsigned char>(i)});
      std::memset(data, blocks.back().value, size);
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const Block block = blocks.back();
      blocks.pop_back();
      ASSERT_TRUE(block.intact()) << "block " << i;
      EXPECT_EQ(arena.give(block.data), block.size);
    }
    const Arena::Usage usage = arena.usage();
    ASSERT_LE(usage.live + usage.waiting, usage.peak);
  }
  arena.trim();
  for (const Block& block : blocks) EXPECT_TRUE(block.intact());
}

TEST(Arena, BlocksNeverOverlap) {
  Arena arena(4096 * kPage);
  keeps_patterns(arena, Arena::system_page());
}

class ArenaPages : public testing::TestWithParam<std::size_t> {
 protected:
  const std::size_t page_ = GetParam() * kPage;
};

// As on processors whose pages are larger: of what is given back, whole pages go, with all that lies in them.
TEST_P(ArenaPages, GivingBackDropsNothingThatLives) {
  const KernelOf kernel(page_);
  Arena arena(4096 * kPage, page_);
  keeps_patterns(arena, page_);
  EXPECT_GT(kernel.dropped(), 0u) << "nothing was given back";
  EXPECT_EQ(kernel.refused(), 0) << "the kernel gives back whole pages only";
}

// What waited is gone, and not only in the arena's books.
TEST_P(ArenaPages, GivesWholePagesBack) {
  const KernelOf kernel(page_);
  Arena arena(64 * page_, page_);
  const std::size_t asked = 3 * page_ + 1;
  auto* const data = static_cast<unsigned char*>(arena.take(asked));
  std::memset(data, 7, 4 * page_);
  EXPECT_EQ(arena.usage().live, 4 * page_);
  EXPECT_EQ(arena.give(data), asked);
  arena.trim();
  EXPECT_EQ(kernel.dropped(), 4 * page_);
  EXPECT_EQ(std::count(data, data + 4 * page_, 0), static_cast<std::ptrdiff_t>(4 * page_));
}

INSTANTIATE_TEST_SUITE_P(TimesTheSystems, ArenaPages, testing::Values(1, 4, 16));

}  // namespace zero::arena_test
