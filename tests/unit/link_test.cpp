#include "partition/wire.h"

#include <gtest/gtest.h>

namespace zero::link_test {

constexpr Collective kGather = Collective::all_gather, kReduce = Collective::reduce_scatter;

TEST(Link, OneHostHasAllInsideAndHostsOfOneRankHaveAllAcross) {
  for (const Collective collective : {kGather, kReduce}) {
    EXPECT_EQ(moved_by(collective, 16, {}, 2, 4), (Moved{30, 0}));
    EXPECT_EQ(moved_by(collective, 16, {.ranks_per_host = 16}, 2, 4), (Moved{30, 0}));
    EXPECT_EQ(moved_by(collective, 16, {.ranks_per_host = 1}, 2, 4), (Moved{30, 30}));
  }
}

// 16 ranks: each receives 15 slices of 2 bytes gathered; of those reduced 12 of 2 bytes from its host, and the sums of
// the three others.
TEST(Link, WhatCrossesToAHostDoesSoOnceOverTwoLevels) {
  const Topology fours{.ranks_per_host = 4, .two_levels = true};
  EXPECT_EQ(moved_by(kGather, 16, fours, 2, 2), (Moved{15 * 2, 3 * 2}));
  EXPECT_EQ(moved_by(kReduce, 16, fours, 2, 2), (Moved{15 * 2, 3 * 2}));
  EXPECT_EQ(moved_by(kReduce, 16, fours, 2, 4), (Moved{12 * 2 + 3 * 4, 3 * 4}));
}

TEST(Link, OneLevelCrossesForEachRank) {
  const Topology fours{.ranks_per_host = 4};
  EXPECT_EQ(moved_by(kGather, 16, fours, 2, 2), (Moved{30, 12 * 2}));
  EXPECT_EQ(moved_by(kReduce, 16, fours, 2, 4), (Moved{30, 12 * 2}));
}

TEST(Link, HostsWithoutAPowerOfTwoReduceBetweenAllRanks) {
  const Topology threes{.ranks_per_host = 3, .two_levels = true};
  EXPECT_EQ(moved_by(kReduce, 12, threes, 2, 4), (Moved{22, 9 * 2}));
  EXPECT_EQ(moved_by(kGather, 12, threes, 2, 2), (Moved{22, 3 * 2}));
}

}  // namespace zero::link_test
