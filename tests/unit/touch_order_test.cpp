#include "partition/touch_order.h"

#include <gtest/gtest.h>

#include <vector>

namespace zero {
namespace {

void touch(TouchOrder& order, const std::vector<int>& units) {
  for (const int unit : units) order.touched(unit);
}

std::vector<int> foreseen(TouchOrder& order, const std::vector<int>& units) {
  std::vector<int> next;
  for (const int unit : units) {
    order.touched(unit);
    next.push_back(order.next());
  }
  return next;
}

TEST(TouchOrder, OfOneMicroBatchPredictsTheNext) {
  TouchOrder order;
  EXPECT_EQ(foreseen(order, {0, 1, 2}), (std::vector<int>{-1, -1, -1})) << "nothing is known yet";
  touch(order, {1, 0});
  order.complete();
  EXPECT_EQ(foreseen(order, {0, 1, 2, 1, 0}), (std::vector<int>{1, 2, 1, 0, -1}));
}

TEST(TouchOrder, BeginsAgainWhereAnotherMicroBatchFollows) {
  TouchOrder order;
  touch(order, {4, 2});
  order.complete();
  order.more_to_come(true);
  EXPECT_EQ(foreseen(order, {4, 2}), (std::vector<int>{2, 4}));
}

TEST(TouchOrder, KeepsOneOfTouchesInARow) {
  TouchOrder order;
  touch(order, {1, 1, 1, 3, 3});
  order.complete();
  EXPECT_EQ(order.last()->touches, (std::vector<int>{1, 3}));
}

TEST(TouchOrder, FindsItsPlaceAgainAfterWhatWasNotForeseen) {
  TouchOrder order;
  touch(order, {0, 1, 2, 3});
  order.complete();
  EXPECT_EQ(foreseen(order, {0, 7, 2}), (std::vector<int>{1, -1, 3}));
}

TEST(TouchOrder, ForgetsAMicroBatchThatFailed) {
  TouchOrder order;
  touch(order, {0, 1});
  order.complete();
  touch(order, {0});
  order.forget();
  EXPECT_EQ(order.next(), -1);
  EXPECT_EQ(foreseen(order, {0, 1}), (std::vector<int>{1, -1}));
  order.complete();
  EXPECT_EQ(order.last()->touches, (std::vector<int>{0, 1}));
}

TEST(TouchOrder, OfForwardsWithoutABackwardDoesNotGrowForEver) {
  TouchOrder order;
  for (int i = 0; i < 300000; ++i) order.touched(i % 2);
  order.complete();
  EXPECT_LE(order.last()->touches.size(), std::size_t{1} << 16);
}

}  // namespace
}  // namespace zero
