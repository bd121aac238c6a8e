// Who holds how many bytes, kept as buffers come and go, and where they come from. Thread-safe: reductions
// free their buffers on the exchange's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <utility>

#include "zero/communicator.h"
#include "zero/ledger.h"

namespace zero {

class Accounts {
 public:
  explicit Accounts(Communicator communicator) : communicator_(std::move(communicator)) {}

  // See Communicator; null where the peers cannot read each other's memory.
  std::shared_ptr<void> own_memory(std::int64_t bytes) const { return communicator_.own_memory(bytes); }
  std::shared_ptr<void> common_memory(std::int64_t bytes) const { return communicator_.common_memory(bytes); }

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
  Communicator communicator_;
  mutable std::mutex mutex_;
  Ledger ledger_;
};

// Uninitialised memory for `count` elements on `device`, booked to `owner` as long as it lives.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Accounts& accounts, Owner owner, std::int64_t count, at::ScalarType dtype, at::Device device);
  // The same in memory that is there already.
  Buffer(Accounts& accounts, Owner owner, std::int64_t count, at::ScalarType dtype, std::shared_ptr<void> memory);
  // The same where the peers can read it in place, if they can at all.
  static Buffer visible(Accounts& accounts, Owner owner, std::int64_t count, at::ScalarType dtype, at::Device device);
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
  void book();

  Accounts* accounts_ = nullptr;
  Owner owner_ = Owner::parameter;
  at::Tensor tensor_;
  void* data_ = nullptr;
};

}  // namespace zero
