#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "zero/layout.h"

namespace zero {

// A sum for each of many ranks, of which few differ.
class PerRank {
 public:
  explicit PerRank(int ranks) : ranks_(ranks) {}

  void add(int begin, int end, std::int64_t bytes) {
    changes_.emplace_back(begin, bytes);
    if (end < ranks_) changes_.emplace_back(end, -bytes);
  }

  std::int64_t most() && {
    std::ranges::sort(changes_, {}, &std::pair<int, std::int64_t>::first);
    std::int64_t sum = 0, largest = 0;
    for (std::size_t i = 0; i < changes_.size(); ++i) {
      sum += changes_[i].second;
      const bool last = i + 1 == changes_.size() || changes_[i + 1].first != changes_[i].first;
      if (last) largest = std::max(largest, sum);
    }
    return largest;
  }

 private:
  int ranks_;
  std::vector<std::pair<int, std::int64_t>> changes_;  // from that rank on
};

// Calls tell(first, last) with slices [first, last) of `length` elements, in order, that have as much as each other of
// every parameter, and all of them together: those within one parameter, those behind the last, and others alone.
template <class Tell>
void alike_slices(const UnitLayout& unit, std::int64_t length, const Tell& tell) {
  const std::int64_t slices = unit.length() / length;
  std::int64_t next = 0;
  const auto alike = [&](std::int64_t first, std::int64_t last) {
    if (first >= last) return;
    tell(static_cast<int>(first), static_cast<int>(last));
    next = last;
  };
  const auto each = [&](std::int64_t last) {
    while (next < last) alike(next, next + 1);
  };
  for (const Slot& slot : unit.slots()) {
    const std::int64_t first = (slot.begin + length - 1) / length, last = slot.end() / length;
    if (first >= last) continue;
    each(first);
    alike(first, last);
  }
  each(std::min<std::int64_t>((unit.slots().back().end() + length - 1) / length, slices));
  alike(next, slices);
}

}  // namespace zero
