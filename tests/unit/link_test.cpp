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

// Three ranks send two sums; of twice the bytes they would be more than what the ranks send.
TEST(Link, HostsOfThreeSendTwoSumsWhereThatIsLess) {
  const Topology threes{.ranks_per_host = 3, .two_levels = true};
  EXPECT_EQ(moved_by(kReduce, 12, threes, 2, 2), (Moved{8 * 2 + 3 * 2 * 2, 3 * 2 * 2}));
  EXPECT_EQ(moved_by(kReduce, 12, threes, 2, 4), (Moved{22, 9 * 2}));
  EXPECT_EQ(moved_by(kGather, 12, threes, 2, 2), (Moved{22, 3 * 2}));
}

// Of five leaves apiece the first rank and the last bring two sums, those between three.
TEST(Link, RanksReceiveWhatTheirPeersBring) {
  const Leaves fives{0, 5, 20};
  for (const auto& [rank, sums] : {std::pair{0, 8}, {1, 7}, {2, 7}, {3, 8}})
    EXPECT_EQ(moved_by(kReduce, 4, {}, 2, 4, fives, rank), (Moved{sums * 2, 0})) << rank;
}

}  // namespace zero::link_test
