// Who holds how many bytes, kept as blocks come and go, and the one door through which an engine gets memory.
// Thread-safe: reductions free their buffers on the exchange's thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backwards/observer.h"
#include "device/device.h"
#include "memory/staged_pass.h"
#include "memory/store.h"
#include "memory/tier_meter.h"
#include "memory/unit_stores.h"
#include "zero/communicator.h"
#include "zero/disk.h"
#include "zero/error.h"
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
  // Of an engine whose tensors are on `device`. Memory that peers read is that of `readers`' ranks, common memory that
  // of `owners`'; there is none but on the host.
  Accounts(c10::Device device, Communicator readers, Communicator owners, DiskOptions disk = {});
  ~Accounts();
  Accounts(const Accounts&) = delete;
  Accounts& operator=(const Accounts&) = delete;

  // States that live as long as the engine; gradients, which come with the first micro-batch; and what comes and goes,
  // parameters gathered and flat gradients.
  enum class Arena : std::uint8_t { states, gradients, passing };

  // Where all of it is, but for what says that it is the host's.
  Device& device() const { return device_; }
  c10::Device where() const { return where_; }
  // What computes with a state of that tier: with what is on others than the device's own, the host.
  Device& computing(Tier tier) const { return tier == Tier::device ? device_ : host_; }

  // See Communicator; null where the peers cannot read each other's memory.
  std::shared_ptr<void> own_memory(std::int64_t bytes) const;
  std::shared_ptr<void> common_memory(std::int64_t bytes) const;

  // What such owners take of a device, not of the host, lies together from now on, in memory of constant size that is
  // taken with the first of it: all blocks' bytes, and the gaps between so many. What finds no room there is taken as
  // all else is. None of it may have been taken yet.
  void set_aside(Arena arena, std::int64_t bytes, std::int64_t blocks);

  // Uninitialised memory of the device, lasting where state and what serves it are in it.
  Block take(std::int64_t bytes, Account account);
  // The host's, lasting.
  Block take_of_host(std::int64_t bytes, Account account);
  // The device's where the peers can read it in place, if they can at all.
  Block take_visible(std::int64_t bytes, Account account);
  // Memory of the host that is there already; and of common memory.
  Block take(std::shared_ptr<void> memory, std::int64_t bytes, Account account);
  Block take_common(std::shared_ptr<void> memory, std::int64_t bytes, Account account);
  // The same as tensors of one dimension, of `count` elements.
  Buffer buffer(Account account, std::int64_t count, at::ScalarType dtype);
  Buffer visible_buffer(Account account, std::int64_t count, at::ScalarType dtype);
  // For stores, which must not outlive the accounts. What state lies in, peers reading it or not.
  Store::Book book();
  // What passes by where `computing` computes goes through: the device's memory, or, where that is not the host's, the
  // host's, from which it is copied quickly.
  Staging staging(const Device& computing, const StagingShape& shape);
  // Memory of the device that is there already, as long as somebody else has it, and is not booked; what moves between
  // it and the host is the owner's.
  Block borrowed(const void* memory, std::int64_t bytes, Owner owner);
  // Of a state in its tier, for the engine that this thread builds; `allocate` gives the device's memory. On the host
  // parameters lie where they are copied from quickly.
  std::unique_ptr<Store> store(State state, Tier tier, AddressableStore::Allocate allocate);
  // The same where units that are `staying` keep theirs on the device.
  UnitStores stores(State state, Tier tier, const AddressableStore::Allocate& allocate, std::vector<char> staying);
  AddressableStore::Allocate lasting(std::optional<Arena> arena = {});
  AddressableStore::Allocate lasting_visible(std::optional<Arena> arena = {});
  AddressableStore::Allocate lasting_of_host() const;

  // Calls; where the device has no memory left, throws an OutOfMemoryError of what `explain` makes of it.
  template <class Call>
  decltype(auto) explaining_memory(const char* during, const Call& call) const {
    try {
      return call();
    } catch (const c10::OutOfMemoryError& error) {
      exhausted(error, during);
    }
  }
  using Explain = std::function<OutOfMemoryError(const std::string& what, const char* during)>;
  void explain_by(Explain explain) { explain_ = std::move(explain); }
  [[noreturn]] void exhausted(const c10::OutOfMemoryError& error, const char* during) const;

  // Of what moves between the device, its host and disks.
  TierMeter& tiers() { return tiers_; }

  void add(Account account, std::int64_t bytes);
  // The memory of tensors that `holder` has, now these, is booked, by an add() of its own.
  void adopt(const void* holder, std::vector<const void*> memory);
  // Is told of what is held, and of every change, until another is; then that nothing is held.
  void observe(std::weak_ptr<EngineObserver> observer);
  Ledger snapshot() const {
    std::lock_guard lock(mutex_);
    return books_.ledger;
  }
  void reset_peaks();

 private:
  struct Reserve {
    std::size_t bytes = 0;
    std::unique_ptr<Device::Arena> arena = nullptr;  // null until it is needed
  };

  // What is held.
  struct Books {
    Ledger ledger;
    std::vector<std::array<std::int64_t, kOwners>> units;     // bytes, by unit + 1
    std::map<const void*, std::vector<const void*>> adopted;  // by holder
  };

  // Where the disk's stores and passages of the host's have buffers.
  Store& passing(const Device& computing) { return &computing == &device_ ? passing_ : passing_host_; }
  std::unique_ptr<Block::Place> place_for(std::size_t bytes, std::optional<Arena> arena, Device::Use use);
  Device::Arena* reserved(Arena arena);
  std::unique_ptr<Block::Place> unreported(std::size_t bytes, Device::Use use) const;
  Block booked(std::unique_ptr<Block::Place> place, std::int64_t bytes, Account account, Block::Count count = {});
  // Of what moves between a block of the device and the host; none where these are one.
  Block::Count over_link(Owner owner);
  // Where the peers can read; null where they cannot.
  std::shared_ptr<void> readable_memory(std::int64_t bytes) const;
  void tell_all(int sign) const;

  c10::Device where_;
  Device& device_;
  Device& host_;
  std::mutex reserving_;
  std::array<Reserve, 3> reserves_;  // by arena
  Communicator readers_, owners_;
  DiskOptions disk_;
  TierMeter tiers_;
  AddressableStore passing_, passing_host_;
  Explain explain_;
  mutable std::mutex mutex_;
  Books books_;
  std::weak_ptr<EngineObserver> observer_;
};

// A block in a device's memory, as a tensor of one dimension.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Block block, at::ScalarType dtype, c10::Device where);
  void reset();
  explicit operator bool() const { return static_cast<bool>(block_); }
  const at::Tensor& tensor() const { return tensor_; }
  Block& block() { return block_; }
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
