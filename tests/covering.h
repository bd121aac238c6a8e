// Matrices of tests without their whole product: rows in which every two values of two parameters meet at least once,
// so that a fault that two of them cause is found, in about as many rows as the two longest parameters have pairs.
// ZERO_TEST_LONG=1 (`make test-long`) takes the product.
//
//   INSTANTIATE_TEST_SUITE_P(All, Suite, testing::ValuesIn(covering(ranks, precisions, all_plans())), name_of);
#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace zero::test {

// A row of a matrix: which value each parameter has, or that it is not chosen yet.
using Row = std::vector<std::size_t>;
inline constexpr std::size_t kOpen = ~std::size_t{0};

// Whether what is open in a row can be chosen so that the row may be. Where no value is excluded by others it always
// can.
using Possible = std::function<bool(const Row&)>;
inline bool everything_is_possible(const Row&) {
  return true;
}

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

// Which pairs of values of two parameters, of those that can meet, have not met yet.
class Unmet {
 public:
  Unmet(const std::vector<std::size_t>& sizes, const Possible& possible) : sizes_(sizes) {
    Row row(sizes.size(), kOpen);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        std::vector<bool>& unmet = pairs_.emplace_back();
        for (row[i] = 0; row[i] < sizes[i]; ++row[i])
          for (row[j] = 0; row[j] < sizes[j]; ++row[j]) count_ += unmet.emplace_back(possible(row));
        row[i] = row[j] = kOpen;
      }
  }

  std::size_t count() const { return count_; }

  bool holds(std::size_t i, std::size_t value, std::size_t j, std::size_t other) const {
    return i < j ? holds(j, other, i, value) : pairs_[i * (i - 1) / 2 + j][value * sizes_[j] + other];
  }

  // Returns how many pairs meet in it for the first time.
  std::size_t meet(const Row& row) {
    const std::size_t before = count_;
    for (std::size_t i = 0; i < row.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        auto unmet = pairs_[i * (i - 1) / 2 + j][row[i] * sizes_[j] + row[j]];
        count_ -= unmet;
        unmet = false;
      }
    return before - count_;
  }

  // A row in which nothing but an unmet pair is chosen.
  Row first() const {
    Row row(sizes_.size(), kOpen);
    for (std::size_t i = 0; i < sizes_.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        const std::vector<bool>& unmet = pairs_[i * (i - 1) / 2 + j];
        const auto found = std::find(unmet.begin(), unmet.end(), true);
        if (found == unmet.end()) continue;
        const auto pair = static_cast<std::size_t>(found - unmet.begin());
        row[i] = pair / sizes_[j];
        row[j] = pair % sizes_[j];
        return row;
      }
    return row;
  }

 private:
  std::vector<std::size_t> sizes_;
  std::vector<std::vector<bool>> pairs_;  // of parameters (1, 0), (2, 0), (2, 1), (3, 0), ...
  std::size_t count_ = 0;
};

// Of values that meet as many pairs, which one a row takes: the first, or the one that the rows before it took least.
enum class Ties { first, rarest };

// Chooses rows, in which many pairs meet.
class Chooser {
 public:
  Chooser(const std::vector<std::size_t>& sizes, const Possible& possible, Ties ties)
      : sizes_(sizes), order_(sizes.size()), possible_(possible), ties_(ties) {
    for (const std::size_t size : sizes) taken_.emplace_back(size);
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  }

  // Chooses what is open: parameter by parameter, those of most values first, of the possible values the one that meets
  // most pairs with what is chosen, and of equals the one with most pairs left.
  Row filled(Row row, const Unmet& unmet) {
    for (const std::size_t parameter : order_) {
      if (row[parameter] != kOpen) continue;
      for (const Found& found : best_first(row, parameter, unmet)) {
        row[parameter] = found.value;
        if (possible_(row)) break;
      }
    }
    for (std::size_t i = 0; i < row.size(); ++i) taken_[i][row[i]] += ties_ == Ties::rarest;
    return row;
  }

 private:
  struct Found {
    std::size_t met = 0, left = 0, taken = 0, value = 0;
  };

  std::vector<Found> best_first(const Row& row, std::size_t parameter, const Unmet& unmet) const {
    std::vector<Found> all(sizes_[parameter]);
    for (std::size_t value = 0; value < all.size(); ++value) {
      all[value] = {.taken = taken_[parameter][value], .value = value};
      for (std::size_t other = 0; other < row.size(); ++other) {
        if (other == parameter) continue;
        if (row[other] != kOpen) all[value].met += unmet.holds(parameter, value, other, row[other]);
        for (std::size_t its = 0; row[other] == kOpen && its < sizes_[other]; ++its)
          all[value].left += unmet.holds(parameter, value, other, its);
      }
    }
    std::stable_sort(all.begin(), all.end(), [](const Found& a, const Found& b) {
      return std::tuple(b.met, b.left, a.taken) < std::tuple(a.met, a.left, b.taken);
    });
    return all;
  }

  std::vector<std::size_t> sizes_, order_;
  const Possible& possible_;
  Ties ties_;
  std::vector<std::vector<std::size_t>> taken_;  // how often, by parameter and value
};

// Rows that are possible, in which every two values of two parameters meet that can. The same ones each time.
inline std::vector<Row> covering_rows(const std::vector<std::size_t>& sizes,
                                      const Possible& possible = everything_is_possible, Ties ties = Ties::first) {
  std::vector<Row> rows;
  if (sizes.size() < 3 || std::count(sizes.begin(), sizes.end(), 0u) > 0) {
    rows = every_row(sizes);
    std::erase_if(rows, [&](const Row& row) { return !possible(row); });
    return rows;
  }
  Unmet unmet(sizes, possible);
  Chooser chooser(sizes, possible, ties);
  while (unmet.count() > 0) {
    Row row = chooser.filled(Row(sizes.size(), kOpen), unmet);
    if (unmet.meet(row) == 0) {
      row = chooser.filled(unmet.first(), unmet);
      unmet.meet(row);
    }
    rows.push_back(std::move(row));
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
