// Who holds how many bytes, kept as buffers come and go. Thread-safe: reductions free their buffers
// on the exchange's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <utility>

#include "zero/ledger.h"

namespace zero {

class Accounts {
 public:
  void add(Owner owner, std::int64_t bytes) {
    std::lock_guard lock(mutex_);
    ledger_.add(owner, bytes);
  }
  Ledger snapshot() const {
    std::lock_guard lock(mutex_);
    return ledger_;
  }
  void reset_peaks();

 private:
  mutable std::mutex mutex_;
  Ledger ledger_;
};

// Uninitialised memory for `count` elements on `device`, booked to `owner` as long as it lives.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Accounts& accounts, Owner owner, std::int64_t count, at::ScalarType dtype, at::Device device);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { reset(); }

  void reset();
  explicit operator bool() const { return tensor_.defined(); }
  const at::Tensor& tensor() const { return tensor_; }  // one dimension
  void* data() const { return data_; }
  std::int64_t count() const { return tensor_.numel(); }
  // Gives the memory away; it is no longer booked.
  at::Tensor take();
  // For when the accounts are gone: ends without a word to them.
  void orphan() { accounts_ = nullptr; }

 private:
  Accounts* accounts_ = nullptr;
  Owner owner_ = Owner::parameter;
  at::Tensor tensor_;
  void* data_ = nullptr;
};

}  // namespace zero
