#include "base/sum_tree.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace zero::sum_tree_test {

// As the tree is said to be: the largest power of two below n, then the rest.
void list_nodes(std::int64_t begin, std::int64_t leaves, std::vector<LeafRange>& nodes) {
  nodes.push_back({begin, begin + leaves});
  if (leaves == 1) return;
  std::int64_t left = 1;
  while (2 * left < leaves) left *= 2;
  list_nodes(begin, left, nodes);
  list_nodes(begin + left, leaves - left, nodes);
}

std::vector<LeafRange> nodes_of(std::int64_t all) {
  std::vector<LeafRange> nodes;
  list_nodes(0, all, nodes);
  return nodes;
}

TEST(SumTree, HasTheLargestNodesThatCoverLeaves) {
  for (std::int64_t all = 1; all <= 21; ++all) {
    const std::vector<LeafRange> nodes = nodes_of(all);
    for (std::int64_t begin = 0; begin < all; ++begin)
      for (std::int64_t end = begin; end <= all; ++end) {
        std::vector<LeafRange> inside;  // that are in no other one inside
        for (const LeafRange& node : nodes)
          if (begin <= node.begin && node.end <= end &&
              std::ranges::none_of(inside, [&](const LeafRange& outer) { return node.end <= outer.end; }))
            inside.push_back(node);
        EXPECT_EQ(largest_nodes({begin, end}, all), inside) << begin << " to " << end << " of " << all;
        EXPECT_EQ(count_nodes({begin, end}, all), std::ssize(inside));
      }
  }
}

TEST(SumTree, DividesNodesAsItself) {
  for (std::int64_t all = 2; all <= 21; ++all)
    for (std::int64_t apiece = 1; apiece <= 5; ++apiece) {
      std::vector<LeafRange> nodes;
      for (std::int64_t begin = 0; begin < all; begin += apiece)
        for (const LeafRange& node : largest_nodes({begin, std::min(begin + apiece, all)}, all)) nodes.push_back(node);
      if (nodes.size() < 2) continue;
      const std::size_t left = left_half(nodes);
      EXPECT_EQ(nodes[left].begin, nodes_of(all)[1].end) << all << " by " << apiece;
    }
}

TEST(SumTree, OfAGroupIsWhatItsRanksBring) {
  const GroupSum whole({}, 6);
  EXPECT_TRUE(whole.plain());
  EXPECT_EQ(whole.most(), 1);
  EXPECT_EQ(SumParts(whole).sums, (std::vector<LeafRange>{{0, 6}}));
  const GroupSum threes({0, 3, 12}, 4);
  EXPECT_FALSE(threes.plain());
  EXPECT_EQ(threes.brought(1), 2);
  EXPECT_EQ(threes.most(), 2);
  EXPECT_EQ(threes.brought(), 8);
  EXPECT_EQ(threes.sums(), 1);
  const SumParts parts(threes);
  EXPECT_EQ(parts.parts.size(), 8U);
  EXPECT_EQ(parts.parts[3].rank, 1);
  EXPECT_EQ(parts.parts[3].number, 1);
  EXPECT_EQ(parts.nodes[3], (LeafRange{4, 6}));
  EXPECT_EQ(parts.sums, (std::vector<LeafRange>{{0, 12}}));
  EXPECT_EQ(threes.within(1, 2), (Leaves{6, 3, 12}));
  EXPECT_EQ(threes.of_groups(2), (Leaves{0, 6, 12}));
  EXPECT_EQ(SumParts(GroupSum(threes.within(1, 2), 2)).sums, (std::vector<LeafRange>{{6, 8}, {8, 12}}));
  EXPECT_EQ(GroupSum({4, 4, 16}, 3).most(), 1);
}

// Three ranks a host send two sums, and so do six.
TEST(SumTree, GroupsSendFewerSumsThanTheirRanks) {
  for (const int size : {3, 6}) {
    const GroupSum hosts(GroupSum({}, 4 * size).of_groups(size), 4);
    EXPECT_EQ(hosts.most(), 2);
  }
  EXPECT_TRUE(GroupSum({}, 12).less_by_groups(3, 4, 4));
  EXPECT_FALSE(GroupSum({}, 12).less_by_groups(3, 2, 4));
  EXPECT_TRUE(GroupSum({}, 12).less_by_groups(6, 2, 4));
  EXPECT_TRUE(GroupSum({}, 4).less_by_groups(2, 2, 4));
}

}  // namespace zero::sum_tree_test
