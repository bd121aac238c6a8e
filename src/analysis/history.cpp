#include "analysis/history.h"

#include <algorithm>

namespace zero {
namespace {

constexpr std::size_t kMostRecords = 1024;
constexpr std::size_t kMostActivities = 16384;
constexpr std::size_t kMostNames = 4096;
constexpr const char* kOtherNames = "(other tags)";

template <class T>
void push(std::deque<T>& newest, T value, std::size_t most) {
  if (newest.size() == most) newest.pop_front();
  newest.push_back(std::move(value));
}

}  // namespace

void History::Sums::add(const MemoryPhase& once) {
  const bool room = all_.size() < kMostNames || places_.contains(once.name);
  const std::string& name = room ? once.name : kOtherNames;
  const auto [found, added] = places_.try_emplace(name, all_.size());
  if (added) all_.push_back({.name = name});
  MemoryPhase& sum = all_[found->second];
  ++sum.count;
  sum.allocated = once.allocated;
  sum.peak = std::max(sum.peak, once.peak);
  sum.reserved = once.reserved;
  sum.change = once.change;
  sum.seconds += once.seconds;
}

void History::add(const MemoryRecord& record) {
  const std::lock_guard lock(mutex_);
  tags_.add({record.tag, 1, record.allocated, record.peak, record.reserved, record.change, record.seconds});
  push(records_, record, kMostRecords);
}

void History::add_phase(const std::string& name, const MemoryLog::Span& span, std::int64_t reserved) {
  const std::lock_guard lock(mutex_);
  phases_.add({name, 1, span.last, span.peak, reserved, span.last - span.first, span.end - span.begin});
}

void History::add(MemoryActivity activity) {
  const std::lock_guard lock(mutex_);
  push(activities_, std::move(activity), kMostActivities);
}

int History::thread() {
  const std::lock_guard lock(mutex_);
  return threads_.try_emplace(std::this_thread::get_id(), static_cast<int>(threads_.size())).first->second;
}

void History::fill(MemoryReport& report) const {
  const std::lock_guard lock(mutex_);
  report.records.assign(records_.begin(), records_.end());
  report.activities.assign(activities_.begin(), activities_.end());
  report.tags = tags_.all();
  report.phases = phases_.all();
}

}  // namespace zero
