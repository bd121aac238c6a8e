// Elements of a tensor as ranges that repeat at equal distances: what a slice of a matrix is whose memory is not in
// row-major order. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace zero {

// `times` ranges of `length` elements, the first from `begin` on, each `step` behind the one before.
struct ElementRun {
  std::int64_t begin = 0, length = 0;
  std::int64_t step = 0;  // 0 where there is one
  std::int64_t times = 1;

  std::int64_t count() const { return length * times; }
  std::int64_t end() const { return begin + step * (times - 1) + length; }
  // How many of its elements come before `element`.
  std::int64_t below(std::int64_t element) const {
    if (element <= begin) return 0;
    const std::int64_t whole = times == 1 ? 0 : std::min((element - begin) / step, times - 1);
    return whole * length + std::min(element - begin - whole * step, length);
  }
  bool operator==(const ElementRun&) const = default;
};

// Ascending, and apart from each other.
using ElementRuns = std::vector<ElementRun>;

inline std::int64_t below(const ElementRuns& runs, std::int64_t element) {
  std::int64_t count = 0;
  for (const ElementRun& run : runs) {
    if (run.begin >= element) break;
    count += run.below(element);
  }
  return count;
}

// The one that so many of them come before.
inline std::int64_t element_at(const ElementRuns& runs, std::int64_t index) {
  for (const ElementRun& run : runs) {
    if (index < run.count()) return run.begin + index / run.length * run.step + index % run.length;
    index -= run.count();
  }
  return -1;
}

// Puts [begin, end) behind what there is, which is before it.
inline void append(ElementRuns& runs, std::int64_t begin, std::int64_t end) {
  const std::int64_t length = end - begin;
  if (!runs.empty()) {
    ElementRun& last = runs.back();
    if (last.times == 1 && last.end() == begin) {
      last.length += length;
      return;
    }
    if (last.length == length && (last.times == 1 || last.begin + last.step * last.times == begin)) {
      last.step = last.times == 1 ? begin - last.begin : last.step;
      ++last.times;
      return;
    }
  }
  runs.push_back({begin, length});
}

// Tells of the ranges of it that lie in [begin, end), as (first, last), ascending.
void each_range(const ElementRuns& runs, std::int64_t begin, std::int64_t end, auto&& tell) {
  for (const ElementRun& run : runs) {
    if (run.begin >= end) break;
    const std::int64_t skipped = run.times == 1 || begin <= run.begin ? 0 : (begin - run.begin) / run.step;
    for (std::int64_t i = skipped; i < run.times; ++i) {
      const std::int64_t first = std::max(run.begin + i * run.step, begin);
      const std::int64_t last = std::min(run.begin + i * run.step + run.length, end);
      if (first >= end) break;
      if (first < last) tell(first, last);
    }
  }
}

}  // namespace zero
