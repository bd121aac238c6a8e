#include "partition/touch_order.h"

#include <algorithm>
#include <utility>

namespace zero {
namespace {

// Of a program that runs forwards with gradients and never a backward.
constexpr std::size_t kLongestTrace = 1 << 16;

}  // namespace

void TouchOrder::touched(int unit) {
  if (!current_.touches.empty() && current_.touches.back() == unit) return;
  if (current_.touches.size() >= kLongestTrace) current_.touches.clear();
  const bool first = current_.touches.empty();
  current_.touches.push_back(unit);
  if (!last_) return;
  const auto& touches = last_->touches;
  const std::size_t from = first ? 0 : std::min(cursor_ + 1, touches.size());
  const auto found = std::find(touches.begin() + static_cast<std::ptrdiff_t>(from), touches.end(), unit);
  lost_ = found == touches.end();
  if (!lost_) cursor_ = static_cast<std::size_t>(found - touches.begin());
}

Expected TouchOrder::next() const {
  Expected expected;
  expected.fill(-1);
  if (lost_ || !last_) return expected;
  const auto& touches = last_->touches;
  const std::size_t known = more_to_come_ ? 2 * touches.size() : touches.size();
  int before = touches[cursor_];
  std::size_t found = 0;
  for (std::size_t at = cursor_ + 1; at < known && found < expected.size(); ++at) {
    const int unit = touches[at % touches.size()];
    if (unit != before) expected[found++] = before = unit;
  }
  return expected;
}

void TouchOrder::complete() {
  last_ = std::exchange(current_, Trace());
  lost_ = true;
}

void TouchOrder::forget() {
  current_.touches.clear();
  lost_ = true;
}

}  // namespace zero
