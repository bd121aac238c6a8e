#include "partition/packed_ranges.h"

#include <algorithm>

namespace zero {

PackedRanges::PackedRanges(const UnitLayout& unit, std::int64_t begin, std::int64_t end,
                           const std::function<bool(const Slot&)>& kept) {
  const std::vector<Slot>& slots = unit.slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (!kept(slots[i])) continue;
    const std::int64_t first = i == 0 ? 0 : slots[i].begin;
    const std::int64_t last = i + 1 == slots.size() ? unit.length() : slots[i + 1].begin;
    const Run run{std::max(begin, first), std::min(end, last), length_};
    if (run.begin >= run.end) continue;
    length_ += run.end - run.begin;
    if (!runs_.empty() && runs_.back().end == run.begin) {
      runs_.back().end = run.end;
    } else {
      runs_.push_back(run);
    }
  }
}

std::int64_t PackedRanges::at(std::int64_t element) const {
  const auto after = std::ranges::partition_point(runs_, [&](const Run& run) { return run.begin <= element; });
  const Run& run = *std::prev(after);
  return run.place + element - run.begin;
}

}  // namespace zero
