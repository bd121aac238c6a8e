#include "zero/collectives.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "zero/error.h"

namespace zero::collectives_test {

void on_ranks(int size, const std::function<void(const World&)>& rank) {
  std::vector<std::thread> threads;
  for (World& world : thread_worlds(size)) threads.emplace_back([&rank, world = std::move(world)] { rank(world); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Collectives, GatherBytesOfAnyLength) {
  for (const int size : {1, 2, 3, 4})
    on_ranks(size, [](const World& world) {
      const std::string mine(static_cast<std::size_t>(world.rank() * 3 % 4), static_cast<char>('a' + world.rank()));
      const std::vector<std::string> all = all_gather_bytes(mine, world);
      const std::vector<std::string> expected{"", "bbb", "cc", "d"};
      EXPECT_EQ(all, std::vector(expected.begin(), expected.begin() + world.size()));
      EXPECT_EQ(all_gather_bytes("", world), std::vector<std::string>(static_cast<std::size_t>(world.size())));
    });
}

TEST(Collectives, BroadcastBytes) {
  on_ranks(3, [](const World& world) {
    const std::string zeros("\0x\0", 3);
    EXPECT_EQ(broadcast_bytes(world.rank() == 2 ? zeros : "something longer", world, 2), zeros);
    EXPECT_EQ(broadcast_bytes(world.rank() == 0 ? "" : "no", world), "");
    EXPECT_THROW(static_cast<void>(broadcast_bytes("", world, 3)), ConfigError);
    EXPECT_THROW(static_cast<void>(broadcast_bytes("", world, -1)), ConfigError);
  });
}

TEST(Collectives, AverageNumbers) {
  on_ranks(4, [](const World& world) {
    const double rank = world.rank();
    EXPECT_EQ(sum(rank, world), 6);
    EXPECT_EQ(mean(rank, world), 1.5);
    EXPECT_EQ(mean(rank * 10, rank, world), 10);  // rank 0 has none
    EXPECT_TRUE(std::isnan(mean(0, 0, world)));
  });
}

// (a + b) + (c + d): in the order of ranks both ones would be lost.
TEST(Collectives, SumAlongTheTree) {
  on_ranks(4, [](const World& world) {
    const double values[] = {0x1p53, 1, 1, -0x1p53};
    EXPECT_EQ(sum(values[world.rank()], world), 1);
  });
}

TEST(Collectives, PrintOnRankZero) {
  testing::internal::CaptureStdout();
  on_ranks(3, [](const World& world) {
    print0(world, "step ", 7, ": ", 0.5);
    barrier(world);
  });
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "step 7: 0.5\n");
}

}  // namespace zero::collectives_test
