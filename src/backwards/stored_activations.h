// What a micro-batch has stored of its activations, by number, each in one version.
//
// Thread-safety: one thread at a time.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "backwards/activation_store.h"

namespace zero {

class StoredActivations {
 public:
  // Null: none is.
  explicit StoredActivations(ActivationStore* store) : store_(store) {}

  explicit operator bool() const { return store_ != nullptr; }
  StoredWay way() const { return store_ != nullptr ? store_->way() : StoredWay(); }
  bool exact() const { return way().exact; }

  // Begins, unless this version is. settle(): the values may go.
  void begin(int number, int version, const StorageValues& values);
  void settle(int number) { at_.at(number).values->settle(); }
  // Begins, unless it has.
  void fetch(int number);
  c10::Storage fetched(int number);
  void discard(int number);
  void clear() { at_.clear(); }
  // Bytes of memory that is there for what is fetched, of all, and of one.
  std::int64_t arriving() const { return arriving_; }
  std::int64_t arrived(int number) const;

  void round(const StorageValues& values) { store_->round(values); }
  // Bytes that the result takes while it is stored: at once, or by a way that is not exact, if a product reads it.
  std::optional<std::int64_t> bytes_of(const at::Tensor& result) const { return store_->stored_bytes(result); }
  void for_products(int number, std::int64_t bytes) { of_products_[number] = bytes; }
  std::optional<std::int64_t> for_products(int number) const;

 private:
  struct Stored {
    int version = 0;
    std::int64_t bytes = 0;
    std::unique_ptr<StoredActivation> values = nullptr;
    bool comes = false;
  };

  ActivationStore* store_;
  std::unordered_map<int, Stored> at_;
  std::int64_t arriving_ = 0;
  std::unordered_map<int, std::int64_t> of_products_;
};

}  // namespace zero
