#include "analysis/timeline.h"

#include <algorithm>
#include <cmath>

namespace zero {

void Timeline::add(const MemorySample& sample) {
  if (samples_.empty()) samples_.reserve(most_);
  while (!put(sample)) halve();
}

// False if it needs a place and all are taken.
bool Timeline::put(const MemorySample& sample) {
  if (used_ > 0 && sample.at < slot_end_) {
    if (sample.allocated > samples_[used_ - 1].allocated) samples_[used_ - 1] = sample;
    return true;
  }
  if (used_ == most_) return false;
  if (used_ == samples_.size()) samples_.emplace_back();
  samples_[used_++] = sample;
  slot_end_ = width_ > 0 ? width_ * (std::floor(sample.at / width_) + 1) : sample.at;
  return true;
}

// In place: what is put is never ahead of what is read.
void Timeline::halve() {
  const double span = samples_.back().at - samples_.front().at;
  width_ = std::max({2 * width_, 2 * span / static_cast<double>(most_), 1e-9});
  used_ = 0;
  for (std::size_t i = 0; i < most_; ++i) put(MemorySample(samples_[i]));
  samples_.resize(used_);
}

}  // namespace zero
