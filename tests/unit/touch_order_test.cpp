#include "partition/touch_order.h"

#include <gtest/gtest.h>

#include <vector>

namespace zero::touch_order_test {

void touch(TouchOrder& order, const std::vector<int>& units) {
  for (const int unit : units) order.touched(unit);
}

std::vector<int> foreseen(TouchOrder& order, const std::vector<int>& units) {
  std::vector<int> next;
  for (const int unit : units) {
    order.touched(unit);
    next.push_back(order.next().front());
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

TEST(TouchOrder, PredictsTwoAhead) {
  TouchOrder order;
  touch(order, {0, 1, 2, 1, 0});
  order.complete();
  order.more_to_come(true);
  std::vector<Expected> next;
  for (const int unit : {0, 1, 2, 1, 0}) {
    order.touched(unit);
    next.push_back(order.next());
  }
  EXPECT_EQ(next, (std::vector<Expected>{{1, 2}, {2, 1}, {1, 0}, {0, 1}, {1, 2}})) << "neighbours differ";
  order.complete();
  order.more_to_come(false);
  touch(order, {0, 1, 2, 1});
  EXPECT_EQ(order.next(), (Expected{0, -1}));
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
  EXPECT_EQ(order.next().front(), -1);
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

TEST(TouchOrder, OfAForwardPredictsEvaluationsUntilThereIsOne) {
  TouchOrder order(TouchOrder::Of::evaluations);
  order.foresee({{0, 1, 2}});
  EXPECT_EQ(foreseen(order, {0, 1, 2, 0, 1, 2}), (std::vector<int>{1, 2, -1, 1, 2, -1})) << "each begins anew";
  order.complete();
  order.foresee({{7, 8}});
  EXPECT_EQ(foreseen(order, {0, 1, 2, 0, 1, 2, 0, 1}), (std::vector<int>{1, 2, 0, 1, 2, -1, 1, 2}));
}

TEST(TouchOrder, OfAnEvaluationThatBeginsAnewPredictsTheRestOfIt) {
  TouchOrder order(TouchOrder::Of::evaluations);
  EXPECT_EQ(foreseen(order, {0, 1, 2, 0, 1, 2, 0}), (std::vector<int>{-1, -1, -1, 1, 2, -1, 1}));
}

TEST(TouchOrder, IsNotThatOfALookAtWeights) {
  TouchOrder order(TouchOrder::Of::evaluations);
  order.foresee({{0, 1, 2, 3}});
  EXPECT_EQ(foreseen(order, {2}), (std::vector<int>{-1}));
  order.complete();
  EXPECT_EQ(foreseen(order, {0, 1}), (std::vector<int>{1, 2})) << "one unit is no order";
  order.complete();
  EXPECT_EQ(foreseen(order, {1, 0, 1}), (std::vector<int>{-1, 1, -1})) << "the order of the newest evaluation";
}

}  // namespace zero::touch_order_test
