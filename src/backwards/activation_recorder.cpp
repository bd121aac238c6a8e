#include "backwards/activation_recorder.h"

namespace zero {

void ActivationRecorder::start() {
  if (accounts_.device().is_host() && memory_observer() == nullptr) observe_memory(this);
}

void ActivationRecorder::stop() {
  if (memory_observer() == this) observe_memory(nullptr);
}

void ActivationRecorder::forget() {
  for (const auto& [data, bytes] : sizes_) accounts_.add(Owner::activation, -bytes);
  sizes_.clear();
}

// A block that another thread freed comes again unseen.
void ActivationRecorder::allocated(void* data, std::size_t bytes) {
  freed(data);
  sizes_[data] = static_cast<std::int64_t>(bytes);
  accounts_.add(Owner::activation, static_cast<std::int64_t>(bytes));
}

void ActivationRecorder::freed(void* data) {
  const auto found = sizes_.find(data);
  if (found == sizes_.end()) return;
  accounts_.add(Owner::activation, -found->second);
  sizes_.erase(found);
}

}  // namespace zero
