#include "partition/touch_order.h"

#include <algorithm>
#include <utility>

namespace zero {
namespace {

// Of a program that runs forwards with gradients and never a backward.
constexpr std::size_t kLongestTrace = 1 << 16;

}  // namespace

Expected following(std::span<const int> touches, std::size_t at, std::size_t end) {
  Expected expected;
  expected.fill(-1);
  std::size_t found = 0;
  int before = touches.empty() ? -1 : touches[at % touches.size()];
  for (std::size_t i = at + 1; i < end && found < expected.size(); ++i)
    if (const int unit = touches[i % touches.size()]; unit != before) expected[found++] = before = unit;
  return expected;
}

void TouchOrder::touched(int unit) {
  if (!current_.touches.empty() && current_.touches.back() == unit) return;
  if (current_.touches.size() >= kLongestTrace) current_.touches.clear();
  const bool first = current_.touches.empty();
  // One that begins anew is as good as complete.
  const bool again = !last_ && current_.touches.size() > 1 && current_.touches.front() == unit;
  if (again && of_ == Of::evaluations) last_ = current_;
  current_.touches.push_back(unit);
  if (!last_) return;
  const std::size_t place = place_of(unit, first);
  lost_ = place == last_->touches.size();
  if (!lost_ || (first && of_ == Of::evaluations)) cursor_ = place;
}

// Where in the last one the unit is used that is touched now: its size, if nowhere.
std::size_t TouchOrder::place_of(int unit, bool first) const {
  const auto& touches = last_->touches;
  const bool evaluates = of_ == Of::evaluations;
  if (!first || !evaluates) {
    const std::size_t from = first ? 0 : std::min(cursor_ + 1, touches.size());
    const auto found = std::find(touches.begin() + static_cast<std::ptrdiff_t>(from), touches.end(), unit);
    if (found != touches.end()) return static_cast<std::size_t>(found - touches.begin());
  }
  return evaluates && touches.front() == unit ? 0 : touches.size();
}

Expected TouchOrder::next() const {
  if (lost_ || !last_) return following({}, 0, 0);
  const auto& touches = last_->touches;
  return following(touches, cursor_, more_to_come_ ? 2 * touches.size() : touches.size());
}

// Evaluations of one unit foresee nothing.
void TouchOrder::complete() {
  lost_ = true;
  Trace trace = std::exchange(current_, Trace());
  if (of_ == Of::evaluations && trace.touches.size() < 2) return;
  last_ = std::move(trace);
  completed_ = true;
}

void TouchOrder::foresee(const Trace& trace) {
  if (completed_ || trace.touches.empty()) return;
  last_ = trace;
  lost_ = true;
}

void TouchOrder::forget() {
  current_.touches.clear();
  lost_ = true;
}

}  // namespace zero
