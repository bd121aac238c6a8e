#include "backwards/activation_recorder.h"

#include "memory/torch/small_blocks.h"

namespace zero {

void ActivationRecorder::start() {
  if (!accounts_.device().is_host() || memory_observer() != nullptr) return;
  observe_memory(this);
  small_blocks::resume();
}

void ActivationRecorder::stop() {
  if (memory_observer() != this) return;
  observe_memory(nullptr);
  small_blocks::pause();
}

void ActivationRecorder::forget() {
  accounts_.add(Owner::activation, -held_);
  held_ = 0;
  sizes_.clear();
  ++micro_batch_;
  if (observes()) small_blocks::begin();
}

void ActivationRecorder::hold(std::int64_t micro_batch, std::int64_t bytes) {
  if (micro_batch != micro_batch_) return;
  accounts_.add(Owner::activation, bytes - held_);
  held_ = bytes;
}

std::int64_t ActivationRecorder::bytes_of(const void* data) const {
  const auto found = sizes_.find(data);
  return found == sizes_.end() ? 0 : found->second;
}

void ActivationRecorder::allocating(std::size_t bytes) {
  if (before_) before_(static_cast<std::int64_t>(bytes));
}

// A block that another thread freed comes again unseen.
void ActivationRecorder::allocated(void* data, std::size_t bytes) {
  const auto size = static_cast<std::int64_t>(bytes);
  const std::int64_t more = size - std::exchange(sizes_[data], size);
  held_ += more;
  accounts_.add(Owner::activation, more);
}

void ActivationRecorder::freed(void* data) {
  const auto found = sizes_.find(data);
  if (found == sizes_.end()) return;
  held_ -= found->second;
  accounts_.add(Owner::activation, -found->second);
  sizes_.erase(found);
}

}  // namespace zero
