#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

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

}  // namespace zero
