#include "analysis/timeline.h"

#include <algorithm>
#include <cmath>

namespace zero {

void Timeline::add(const MemorySample& sample) {
  const auto slot = [this](const MemorySample& each) { return std::floor(each.at / width_); };
  if (width_ > 0 && !samples_.empty() && slot(samples_.back()) == slot(sample)) {
    if (sample.allocated > samples_.back().allocated) samples_.back() = sample;
    return;
  }
  if (samples_.size() == most_) {
    halve();
    return add(sample);
  }
  samples_.push_back(sample);
}

void Timeline::halve() {
  const double span = samples_.back().at - samples_.front().at;
  width_ = std::max(2 * width_, 2 * span / static_cast<double>(most_));
  if (width_ == 0) width_ = 1e-9;
  std::vector<MemorySample> before = std::move(samples_);
  samples_.clear();
  for (const MemorySample& sample : before) add(sample);
}

}  // namespace zero
