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
  static_assert(std::is_same_v<T, double> || std::is_same_v<T, std::int64_t>);
  constexpr auto dtype = std::is_same_v<T, double> ? zero::Dtype::f64 : zero::Dtype::i64;
  const auto count = static_cast<std::int64_t>(mine.size());
  std::vector<T> all(mine.size() * static_cast<std::size_t>(world.size()));
  world.communicator().all_gather({mine.data(), count, dtype}, {all.data(), count * world.size(), dtype}).wait();
  return all;
}

template <class T>
T largest(const zero::World& world, T value) {
  const std::vector<T> all = gather<T>(world, {value});
  return *std::max_element(all.begin(), all.end());
}

}  // namespace cli
