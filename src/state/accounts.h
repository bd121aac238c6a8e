// Who holds how many bytes, kept as blocks come and go, and the one door through which an engine gets memory.
// Thread-safe: reductions free their buffers on the exchange's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "memory/store.h"
#include "state/observer.h"
#include "zero/communicator.h"
#include "zero/ledger.h"

namespace zero {

// Whose bytes they are, and of which unit of the layout; -1: of none, or not said.
struct Account {
  Account(Owner whose, int of_unit = -1) : owner(whose), unit(of_unit) {}

  Owner owner;
  int unit;
};

class Buffer;

class Accounts {
 public:
  // Memory that peers read is that of `readers`' ranks, common memory that of `owners`'.
  Accounts(Communicator readers, Communicator owners) : readers_(std::move(readers)), owners_(std::move(owners)) {}
  ~Accounts();
  Accounts(const Accounts&) = delete;
  Accounts& operator=(const Accounts&) = delete;

  // See Communicator; null where the peers cannot read each other's memory.
  std::shared_ptr<void> own_memory(std::int64_t bytes) const { return readers_.own_memory(bytes); }
  std::shared_ptr<void> common_memory(std::int64_t bytes) const { return owners_.common_memory(bytes); }

  // Uninitialised memory of the host, on huge pages where it is to stay: in it are state and what serves it.
  Block take(std::int64_t bytes, Account account);
  // The same where the peers can read it in place, if they can at all.
  Block take_visible(std::int64_t bytes, Account account);
  // Memory that is there already.
  Block take(std::shared_ptr<void> memory, std::int64_t bytes, Account account);
  // The same as tensors of one dimension, of `count` elements.
  Buffer buffer(Account account, std::int64_t count, at::ScalarType dtype);
  Buffer visible_buffer(Account account, std::int64_t count, at::ScalarType dtype);
  Buffer buffer_in(std::shared_ptr<void> memory, Account account, std::int64_t count, at::ScalarType dtype);
  // For stores, which must not outlive the accounts. What state lies in, peers reading it or not.
  Store::Book book();
  HostStore::Allocate lasting() const;
  HostStore::Allocate lasting_visible() const;

  void add(Account account, std::int64_t bytes);
  // The memory of tensors that `holder` has, now these, is booked, by an add() of its own.
  void adopt(const void* holder, std::vector<const void*> memory);
  // Is told of what is held, and of every change, until another is; then that nothing is held.
  void observe(std::weak_ptr<EngineObserver> observer);
  Ledger snapshot() const {
    std::lock_guard lock(mutex_);
    return ledger_;
  }
  void reset_peaks();

 private:
  // Where the peers can read; null where they cannot.
  std::shared_ptr<void> readable_memory(std::int64_t bytes) const;
  void tell_all(int sign) const;

  Communicator readers_, owners_;
  mutable std::mutex mutex_;
  Ledger ledger_;
  std::vector<std::array<std::int64_t, kOwners>> units_;     // bytes, by unit + 1
  std::map<const void*, std::vector<const void*>> adopted_;  // by holder
  std::weak_ptr<EngineObserver> observer_;
};

// A block in memory, as a tensor of one dimension.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Block block, at::ScalarType dtype);
  void reset();
  explicit operator bool() const { return static_cast<bool>(block_); }
  const at::Tensor& tensor() const { return tensor_; }
  void* data() const { return block_.view().data; }
  std::int64_t count() const { return tensor_.numel(); }
  // Gives the memory away; it is no longer booked.
  std::shared_ptr<void> release();
  // For when the accounts are gone: ends without a word to them.
  void orphan() { block_.orphan(); }

 private:
  Block block_;
  at::Tensor tensor_;
};

}  // namespace zero
