// What every rank has, brought together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "zero/world.h"

namespace cli {

template <class T>
std::vector<T> gather(const zero::World& world, const std::vector<T>& mine) {
  constexpr auto dtype = std::is_same_v<T, double> ? zero::Dtype::f64 : zero::Dtype::i64;
  const auto count = static_cast<std::int64_t>(mine.size());
  std::vector<T> all(mine.size() * static_cast<std::size_t>(world.size()));
  world.communicator().all_gather({mine.data(), count, dtype}, {all.data(), count * world.size(), dtype}).wait();
  return all;
}

// Of an odd number of values the median, of an even one the larger of the two in the middle.
inline double middle(std::vector<double> values) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

template <class T>
T largest(const zero::World& world, T value) {
  const std::vector<T> all = gather<T>(world, {value});
  return *std::max_element(all.begin(), all.end());
}

}  // namespace cli
