#include "partition/accumulation_order.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/sum_tree.h"
#include "zero/estimate.h"
#include "zero/plan.h"

namespace zero::accumulation_order_test {

// A sum, written out. Whatever is brought, its leaves are in order.
std::string sum_of(const std::vector<LeafRange>& nodes, const std::vector<std::string>& texts, std::size_t begin,
                   std::size_t end) {
  if (end - begin == 1) return texts[begin];
  const std::size_t left = begin + left_half(std::span(nodes).subspan(begin, end - begin));
  return "(" + sum_of(nodes, texts, begin, left) + "+" + sum_of(nodes, texts, left, end) + ")";
}

std::string tree_of(std::int64_t all) {
  std::vector<LeafRange> leaves;
  std::vector<std::string> texts;
  for (std::int64_t leaf = 0; leaf < all; ++leaf) {
    leaves.push_back({leaf, leaf + 1});
    texts.push_back(std::to_string(leaf));
  }
  return sum_of(leaves, texts, 0, leaves.size());
}

// The sums that a rank holds.
class Held {
 public:
  void add(const AccumulateStep& step, std::string gradient) {
    for (const int source : step.sources) gradient = "(" + sums_.at(source) + "+" + gradient + ")";
    sums_[step.target] = gradient;
    most_ = std::max(most_, step.target + 1);
  }
  const std::string& at(int level) const { return sums_.at(level); }
  int most() const { return most_; }

 private:
  std::map<int, std::string> sums_;
  int most_ = 0;
};

// What comes of a reduction, each rank bringing sums of the leaves.
std::vector<std::string> reduced(const Leaves& leaves, const std::vector<std::vector<std::string>>& brought) {
  const SumParts sum(GroupSum(leaves, static_cast<int>(brought.size())));
  const std::vector<LeafRange>& nodes = sum.nodes;
  std::vector<std::string> texts, sums;
  for (const SumParts::Part& part : sum.parts)
    texts.push_back(brought.at(static_cast<std::size_t>(part.rank)).at(static_cast<std::size_t>(part.number)));
  sum.each_sum([&](std::size_t, std::size_t first, std::size_t number) {
    sums.push_back(sum_of(nodes, texts, first, first + number));
  });
  return sums;
}

struct Case {
  int ranks, micro_batches;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (int micro_batches = 1; micro_batches <= 9; ++micro_batches) all.push_back({ranks, micro_batches});
  for (const Case& each : {Case{40, 13}, {33, 7}, {5, 21}, {20, 24}}) all.push_back(each);
  return all;
}

TEST(AccumulationOrder, OfPlansThatAddFirstIsOneTree) {
  for (const auto& [ranks, micro_batches] : cases()) {
    const Plan plan = Plan::zero1().accumulate(micro_batches).reproducible(true);
    std::vector<std::vector<std::string>> brought;
    const SumsOfStep sums = sums_of_step(plan, ranks);
    int levels = 0, left = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const AccumulationOrder order(plan, ranks, rank);
      Held held;
      for (int micro = 0; micro < micro_batches; ++micro) {
        ASSERT_EQ(order.steps(micro).size(), 1U);
        held.add(order.steps(micro)[0], std::to_string(micro_batch_index(plan, ranks, rank, micro)));
      }
      brought.emplace_back();
      for (int level = 0; level < order.left(); ++level) brought.back().push_back(held.at(level));
      EXPECT_EQ(held.most(), order.levels());
      levels = std::max(levels, order.levels());
      left = std::max(left, order.left());
      EXPECT_GE(order.left(), AccumulationOrder(plan, ranks, sums.least).left());
    }
    EXPECT_EQ(sums.levels, levels);
    EXPECT_EQ(sums.left, left);
    EXPECT_EQ(sums.added, micro_batches);
    EXPECT_EQ(sums.joined, micro_batches - left);
    const AccumulationOrder order(plan, ranks, 0);
    EXPECT_EQ(reduced(order.reduced(micro_batches - 1), brought),
              std::vector{tree_of(std::int64_t{ranks} * micro_batches)})
        << ranks << " x " << micro_batches;
  }
}

TEST(AccumulationOrder, OfPlansThatReduceEachIsTheSameTree) {
  for (const auto& [ranks, micro_batches] : cases()) {
    const Plan plan = Plan::zero2().accumulate(micro_batches).reproducible(true);
    const AccumulationOrder order(plan, ranks, 0);
    Held held;
    std::int64_t added = 0;
    for (int micro = 0; micro < micro_batches; ++micro) {
      std::vector<std::vector<std::string>> brought;
      for (int rank = 0; rank < ranks; ++rank)
        brought.push_back({std::to_string(micro_batch_index(plan, ranks, rank, micro))});
      const std::vector<std::string> sums = reduced(order.reduced(micro), brought);
      const std::vector<AccumulateStep> steps = order.steps(micro);
      ASSERT_EQ(steps.size(), sums.size());
      for (std::size_t i = 0; i < steps.size(); ++i) held.add(steps[i], sums[i]);
      added += std::ssize(steps);
    }
    EXPECT_EQ(held.at(0), tree_of(std::int64_t{ranks} * micro_batches)) << ranks << " x " << micro_batches;
    EXPECT_EQ(held.most(), accumulation_levels(plan, ranks));
    EXPECT_EQ(order.left(), 1);
    EXPECT_EQ(sums_of_step(plan, ranks).added, added);
    EXPECT_EQ(sums_of_step(plan, ranks).joined, added - 1);
  }
}

TEST(AccumulationOrder, IsARunningSumByDefault) {
  for (const Plan& plan : {Plan::zero1().accumulate(3), Plan::zero2().accumulate(3)}) {
    const AccumulationOrder order(plan, 3, 1);
    for (int micro = 0; micro < 5; ++micro)
      EXPECT_EQ(order.steps(micro),
                (std::vector<AccumulateStep>{{micro == 0 ? std::vector<int>{} : std::vector{0}, 0}}));
    EXPECT_TRUE(GroupSum(order.reduced(4), 3).plain());
    EXPECT_EQ(order.levels(), 1);
    EXPECT_EQ(order.left(), 1);
  }
}

}  // namespace zero::accumulation_order_test
