#include "covering.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace zero::test::covering_test {

using Sizes = std::vector<std::size_t>;

// Of several lengths and orders, with parameters of one value among them.
const std::vector<Sizes> kMatrices{{},
                                   {4},
                                   {5, 3},
                                   {2, 2, 2},
                                   {5, 2, 2},
                                   {3, 1, 4},
                                   {4, 4, 4, 4},
                                   {1, 1, 1, 1},
                                   {17, 3, 2, 3, 2},
                                   {2, 3, 2, 3, 17},
                                   {2, 6, 4, 5},
                                   {7, 7, 2},
                                   {2, 2, 2, 2, 2, 2},
                                   {3, 3, 3, 3, 3, 3, 3}};

// Every pair of values of every two parameters.
std::set<std::vector<std::size_t>> pairs_of(const std::vector<Row>& rows) {
  std::set<std::vector<std::size_t>> pairs;
  for (const Row& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) pairs.insert({i, row[i], j, row[j]});
  return pairs;
}

std::string text_of(const Sizes& sizes) {
  std::string text;
  for (const std::size_t size : sizes) text += std::to_string(size) + " ";
  return text;
}

TEST(Covering, EveryTwoValuesOfTwoParametersMeet) {
  for (const Sizes& sizes : kMatrices) {
    EXPECT_EQ(pairs_of(covering_rows(sizes)), pairs_of(every_row(sizes))) << text_of(sizes);
  }
}

// Every value but the first of the second parameter needs the last of the first one, and excludes others of the third.
TEST(Covering, EveryTwoValuesMeetOfARowThatMayBe) {
  const Sizes sizes{3, 4, 5, 2, 6};
  const auto may_be = [](const Row& row) { return row[1] == 0 || (row[0] == 2 && (row[1] + row[2]) % 3 != 0); };
  const auto chosen = [](const Row& open, const Row& row) {
    for (std::size_t i = 0; i < row.size(); ++i)
      if (open[i] != kOpen && open[i] != row[i]) return false;
    return true;
  };
  std::vector<Row> all = every_row(sizes);
  std::erase_if(all, [&](const Row& row) { return !may_be(row); });
  const Possible possible = [&](const Row& open) {
    return std::ranges::any_of(all, [&](const Row& row) { return chosen(open, row); });
  };
  for (const Ties ties : {Ties::first, Ties::rarest}) {
    const std::vector<Row> rows = covering_rows(sizes, possible, ties);
    for (const Row& row : rows) EXPECT_TRUE(may_be(row));
    EXPECT_EQ(pairs_of(rows), pairs_of(all));
    EXPECT_EQ(std::set<Row>(rows.begin(), rows.end()).size(), rows.size());
    EXPECT_LT(rows.size(), 50u);
  }
}

TEST(Covering, TakesTheRarestValueWhereSeveralDoAsWell) {
  std::vector<int> taken(2);
  for (const Row& row : covering_rows({6, 6, 2}, everything_is_possible, Ties::rarest)) ++taken[row[2]];
  EXPECT_EQ(taken[0], taken[1]);
}

TEST(Covering, TheRowsAreOfTheProductAndNoneComesTwice) {
  for (const Sizes& sizes : kMatrices) {
    const std::vector<Row> all = every_row(sizes), rows = covering_rows(sizes);
    const std::set<Row> product(all.begin(), all.end()), distinct(rows.begin(), rows.end());
    EXPECT_EQ(distinct.size(), rows.size()) << text_of(sizes);
    for (const Row& row : rows) EXPECT_TRUE(product.contains(row)) << text_of(sizes);
  }
}

TEST(Covering, TakesAboutAsManyRowsAsTheTwoLongestParametersHavePairs) {
  for (const Sizes& sizes : kMatrices) {
    Sizes sorted = sizes;
    std::ranges::sort(sorted, std::greater());
    if (sorted.size() < 2) continue;
    const std::size_t least = sorted[0] * sorted[1];
    EXPECT_GE(covering_rows(sizes).size(), least) << text_of(sizes);
    EXPECT_LE(covering_rows(sizes).size(), least + least / 2 + 6) << text_of(sizes);
  }
}

TEST(Covering, OfOneOrTwoParametersIsTheProductAndOfNoValuesNothing) {
  EXPECT_EQ(covering_rows({3}), (std::vector<Row>{{0}, {1}, {2}}));
  EXPECT_EQ(covering_rows({0, 3, 2}), std::vector<Row>());
  EXPECT_EQ(covering_rows({2, 2}), (std::vector<Row>{{0, 0}, {0, 1}, {1, 0}, {1, 1}}));
}

TEST(Covering, GivesTheValuesOfTheRowsOrOfTheProductInALongTest) {
  const std::vector<int> numbers{1, 2, 3};
  const std::vector<std::string> words{"a", "b"};
  const std::vector<bool> flags{false, true};
  const auto tested = covering(numbers, words, flags);
  EXPECT_EQ(tested.size(), long_tests() ? 12u : covering_rows({3, 2, 2}).size());
  const std::set<std::tuple<int, std::string, bool>> distinct(tested.begin(), tested.end());
  EXPECT_EQ(distinct.size(), tested.size());
  EXPECT_TRUE(distinct.contains({1, "a", false}));
}

}  // namespace zero::test::covering_test
