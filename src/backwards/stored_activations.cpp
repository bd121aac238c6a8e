#include "backwards/stored_activations.h"

#include <utility>

namespace zero {

void StoredActivations::begin(int number, int version, const StorageValues& values) {
  Stored& its = at_[number];
  if (its.values && its.version == version) return;
  its.values = nullptr;  // of a version before
  its = {.version = version, .bytes = values.bytes, .values = store_->store(values)};
}

void StoredActivations::fetch(int number) {
  Stored& its = at_.at(number);
  if (std::exchange(its.comes, true)) return;
  its.values->fetch();
  arriving_ += its.bytes;
}

c10::Storage StoredActivations::fetched(int number) {
  fetch(number);
  Stored& its = at_.at(number);
  its.comes = false;
  arriving_ -= its.bytes;
  return its.values->fetched();
}

std::int64_t StoredActivations::arrived(int number) const {
  const auto at = at_.find(number);
  return at != at_.end() && at->second.comes ? at->second.bytes : 0;
}

void StoredActivations::discard(int number) {
  const auto at = at_.find(number);
  if (at == at_.end()) return;
  if (at->second.comes) arriving_ -= at->second.bytes;
  at_.erase(at);
}

std::optional<std::int64_t> StoredActivations::for_products(int number) const {
  const auto at = of_products_.find(number);
  return at == of_products_.end() ? std::nullopt : std::optional(at->second);
}

}  // namespace zero
