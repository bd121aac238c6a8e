// Matrices of tests without their whole product: rows in which every two values of two parameters meet at least once,
// so that a fault that two of them cause is found, in about as many rows as the two longest parameters have pairs.
// ZERO_TEST_LONG=1 (`make test-long`) takes the product.
//
//   INSTANTIATE_TEST_SUITE_P(All, Suite, testing::ValuesIn(covering(ranks, precisions, all_plans())), name_of);
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace zero::test {

// A row of a matrix: which value each parameter has.
using Row = std::vector<std::size_t>;

inline bool long_tests() {
  const char* const text = std::getenv("ZERO_TEST_LONG");
  return text != nullptr && std::string_view(text) != "" && std::string_view(text) != "0";
}

// All rows of parameters with so many values each, the last parameter's changing first.
inline std::vector<Row> every_row(const std::vector<std::size_t>& sizes) {
  std::vector<Row> rows{{}};
  for (const std::size_t size : sizes) {
    std::vector<Row> longer;
    for (const Row& row : rows)
      for (std::size_t value = 0; value < size; ++value) {
        longer.push_back(row);
        longer.back().push_back(value);
      }
    rows = std::move(longer);
  }
  return rows;
}

// Which pairs of values of two parameters have not met yet.
class Unmet {
 public:
  explicit Unmet(const std::vector<std::size_t>& sizes) : sizes_(sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        pairs_.emplace_back(sizes[i] * sizes[j], true);
        count_ += sizes[i] * sizes[j];
      }
  }

  std::size_t count() const { return count_; }

  bool holds(std::size_t i, std::size_t value, std::size_t j, std::size_t other) const {
    return i < j ? holds(j, other, i, value) : pairs_[i * (i - 1) / 2 + j][value * sizes_[j] + other];
  }

  void meet(const Row& row) {
    for (std::size_t i = 0; i < row.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        auto unmet = pairs_[i * (i - 1) / 2 + j][row[i] * sizes_[j] + row[j]];
        count_ -= unmet;
        unmet = false;
      }
  }

 private:
  std::vector<std::size_t> sizes_;
  std::vector<std::vector<bool>> pairs_;  // of parameters (1, 0), (2, 0), (2, 1), (3, 0), ...
  std::size_t count_ = 0;
};

// A row that meets many of the pairs: parameter by parameter in the order given, the value that meets most of those
// with the parameters before it, and of equals the one with most pairs left, then the first.
inline Row greedy_row(const std::vector<std::size_t>& sizes, const std::vector<std::size_t>& order,
                      const Unmet& unmet) {
  Row row(sizes.size());
  for (std::size_t at = 0; at < order.size(); ++at) {
    const std::size_t parameter = order[at];
    std::pair<std::size_t, std::size_t> most{0, 0};
    for (std::size_t value = 0; value < sizes[parameter]; ++value) {
      std::pair<std::size_t, std::size_t> found{0, 0};
      for (std::size_t before = 0; before < at; ++before)
        found.first += unmet.holds(parameter, value, order[before], row[order[before]]);
      for (std::size_t after = at + 1; after < order.size(); ++after)
        for (std::size_t other = 0; other < sizes[order[after]]; ++other)
          found.second += unmet.holds(parameter, value, order[after], other);
      if (value == 0 || found > most) {
        most = found;
        row[parameter] = value;
      }
    }
  }
  return row;
}

// Rows in which every two values of two parameters meet. The same ones each time.
inline std::vector<Row> covering_rows(const std::vector<std::size_t>& sizes) {
  if (sizes.size() < 3 || std::count(sizes.begin(), sizes.end(), 0u) > 0) return every_row(sizes);
  std::vector<std::size_t> order(sizes.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  std::vector<Row> rows;
  Unmet unmet(sizes);
  while (unmet.count() > 0) {
    rows.push_back(greedy_row(sizes, order, unmet));
    unmet.meet(rows.back());
  }
  return rows;
}

template <class... T, std::size_t... I>
std::tuple<T...> values_of(const Row& row, std::index_sequence<I...>, const std::vector<T>&... values) {
  return {values[row[I]]...};
}

// The rows that are tested.
template <class... T>
std::vector<std::tuple<T...>> covering(const std::vector<T>&... values) {
  const std::vector<std::size_t> sizes{values.size()...};
  std::vector<std::tuple<T...>> tested;
  for (const Row& row : long_tests() ? every_row(sizes) : covering_rows(sizes))
    tested.push_back(values_of(row, std::index_sequence_for<T...>(), values...));
  return tested;
}

}  // namespace zero::test
