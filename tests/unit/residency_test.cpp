#include "partition/residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace zero::residency_test {

using Units = std::vector<int>;

TEST(Residency, ReleasesTheLeastRecentlyUsedFirst) {
  Residency units({4, 4, 4, 4}, 12);
  EXPECT_TRUE(units.admit(0).empty());
  EXPECT_TRUE(units.admit(1).empty());
  EXPECT_TRUE(units.admit(2).empty());
  units.touch(0);
  EXPECT_EQ(units.residents(), (Units{1, 2, 0}));
  EXPECT_EQ(units.admit(3), (Units{1}));
  EXPECT_FALSE(units.resident(1));
  EXPECT_EQ(units.residents(), (Units{2, 0, 3}));
  EXPECT_EQ(units.bytes(), 12);
}

TEST(Residency, ReleasesNoMoreThanItMust) {
  Residency units({1, 2, 3, 4}, 6);
  units.admit(0);
  units.admit(1);
  units.admit(2);
  EXPECT_EQ(units.admit(3), (Units{0, 1, 2}));
  EXPECT_EQ(units.admit(0), Units{});
  EXPECT_EQ(units.admit(1), (Units{3}));
}

TEST(Residency, APrefetchStaysBehindTheUnitInUse) {
  Residency units({4, 4, 4, 4}, 8);
  units.admit(0);
  EXPECT_TRUE(units.admit(1, 0).empty());
  EXPECT_EQ(units.residents(), (Units{1, 0}));
  EXPECT_EQ(units.admit(2, 0), (Units{1}));
  EXPECT_EQ(units.admit(3), (Units{2}));
  EXPECT_EQ(units.residents(), (Units{0, 3}));
  EXPECT_EQ(units.admit(1, 0), (Units{3}));
}

TEST(Residency, AUnitLargerThanTheBudgetStillComesIn) {
  Residency units({4, 9}, 8);
  units.admit(0);
  EXPECT_EQ(units.admit(1), (Units{0}));
  EXPECT_EQ(units.bytes(), 9);
  EXPECT_EQ(units.admit(0), (Units{1}));
  EXPECT_EQ(units.ahead_of(0, std::vector{1}), 0u);
}

TEST(Residency, BringsAheadWhatFitsTogether) {
  const Residency one({4, 2, 1, 3}, 9), two({4, 2, 1, 3}, 9, 2);
  EXPECT_EQ(one.ahead_of(0, std::vector{1, 2}), 1u);
  EXPECT_EQ(two.ahead_of(0, std::vector{1, 2}), 2u);
  EXPECT_EQ(two.ahead_of(0, std::vector{1, 3}), 2u);
  EXPECT_EQ(Residency({4, 2, 1, 3}, 8, 2).ahead_of(0, std::vector{1, 3}), 1u);
  EXPECT_EQ(two.ahead_of(0, std::vector{1, -1}), 1u);
  EXPECT_EQ(two.ahead_of(0, std::vector{-1, -1}), 0u);
}

TEST(Residency, PinnedUnitsStay) {
  Residency units({4, 4, 4}, 4);
  units.admit(0);
  units.pin(0);
  units.pin(0);
  EXPECT_TRUE(units.admit(1).empty());
  EXPECT_EQ(units.bytes(), 8);
  units.unpin(0);
  EXPECT_EQ(units.admit(2), (Units{1}));
  units.unpin(0);
  EXPECT_EQ(units.admit(1), (Units{0, 2}));
}

TEST(Residency, UnitsWithoutBytesAreNeverInTheWay) {
  Residency units({0, 4, 4}, 4);
  units.admit(0);
  units.admit(1);
  EXPECT_EQ(units.admit(2), (Units{1}));
  EXPECT_TRUE(units.resident(0));
}

TEST(Residency, DropAndClear) {
  Residency units({4, 4, 4}, 12);
  for (const int unit : {0, 1, 2}) units.admit(unit);
  units.drop(1);
  units.drop(1);
  EXPECT_EQ(units.residents(), (Units{0, 2}));
  EXPECT_EQ(units.bytes(), 8);
  units.clear();
  EXPECT_TRUE(units.residents().empty());
  EXPECT_EQ(units.bytes(), 0);
}

// The contract, word by word, over a plain list.
struct ListModel {
  std::vector<std::int64_t> unit_bytes;
  std::int64_t budget = 0;
  Units order;

  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const int unit : order) sum += unit_bytes[static_cast<std::size_t>(unit)];
    return sum;
  }
  Units admit(int unit, int keep) {
    Units released;
    while (bytes() + unit_bytes[static_cast<std::size_t>(unit)] > budget) {
      const auto oldest = std::ranges::find_if(order, [&](int old) { return old != keep; });
      if (oldest == order.end()) break;
      released.push_back(*oldest);
      order.erase(oldest);
    }
    order.insert(std::ranges::find(order, keep), unit);
    return released;
  }
  void drop(int unit) { std::erase(order, unit); }
  void touch(int unit) {
    drop(unit);
    order.push_back(unit);
  }
};

TEST(Residency, AgreesWithAPlainList) {
  std::mt19937_64 random(3);
  const auto below = [&](std::uint64_t n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 50; ++round) {
    std::vector<std::int64_t> bytes(6);
    for (std::int64_t& b : bytes) b = 1 + below(9);
    ListModel model{bytes, 5 + below(20), {}};
    Residency units(bytes, model.budget);
    for (int step = 0; step < 200; ++step) {
      const int unit = below(6);
      if (units.resident(unit)) {
        const bool drop = below(4) == 0;
        drop ? units.drop(unit) : units.touch(unit);
        drop ? model.drop(unit) : model.touch(unit);
      } else {
        const int keep = model.order.empty() || below(2) == 0 ? -1 : model.order.back();
        ASSERT_EQ(units.admit(unit, keep), model.admit(unit, keep));
      }
      ASSERT_EQ(units.residents(), model.order);
      ASSERT_EQ(units.bytes(), model.bytes());
    }
  }
}

TEST(Residency, TheDefaultBudgetIsTheTwoLargestUnits) {
  const std::vector<ParameterSpec> specs{{.name = "a", .numel = 1024, .unit = "a"},
                                         {.name = "b", .numel = 3072, .unit = "b"},
                                         {.name = "c", .numel = 2048, .unit = "c"}};
  const Layout layout(specs, 2);
  EXPECT_EQ(residency(Plan::zero3(), layout).budget(), 4 * (3072 + 2048));
  EXPECT_EQ(residency(Plan::zero3().resident_budget(100), layout).budget(), 100);
  EXPECT_EQ(residency(Plan::zero3(), Layout(std::span(specs).first(1), 2)).budget(), 4 * 1024);
  EXPECT_EQ(residency(Plan::zero3(), Layout({}, 2)).budget(), 0);
}

}  // namespace zero::residency_test
