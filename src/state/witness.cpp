#include "state/witness.h"

namespace zero {

void Witness::start() {
  if (memory_observer() == nullptr) observe_memory(this);
}

void Witness::stop() {
  if (memory_observer() == this) observe_memory(nullptr);
}

void Witness::forget() {
  for (const auto& [data, bytes] : sizes_) accounts_.add(Owner::activation, -bytes);
  sizes_.clear();
}

// A block that another thread freed comes again unseen.
void Witness::allocated(void* data, std::size_t bytes) {
  freed(data);
  sizes_[data] = static_cast<std::int64_t>(bytes);
  accounts_.add(Owner::activation, static_cast<std::int64_t>(bytes));
}

void Witness::freed(void* data) {
  const auto found = sizes_.find(data);
  if (found == sizes_.end()) return;
  accounts_.add(Owner::activation, -found->second);
  sizes_.erase(found);
}

}  // namespace zero
