// Brings parameters from another tier to where they are computed with: where that is a device, from the host's memory
// beside what is computed there, from a disk through buffers of constant number and size, each read while the one
// before it goes to the device.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "backwards/accounts.h"
#include "base/worker.h"
#include "device/device.h"
#include "memory/staged_pass.h"
#include "memory/store.h"

namespace zero {

// What is on its way to memory: it has come when this ends.
class TierLoad {
 public:
  TierLoad(Pending pending, Device& device) : pending_(std::move(pending)), device_(device) {}
  ~TierLoad();
  TierLoad(const TierLoad&) = delete;
  TierLoad& operator=(const TierLoad&) = delete;
  // What the calling thread queues on the device from now on comes behind it. Throws what it failed with.
  void follow();

 private:
  Pending pending_;
  Device& device_;
};

// Thread-safe: what is served to other ranks is brought for the exchange's thread.
class TierLoader {
 public:
  // `store` of the parameters.
  TierLoader(std::unique_ptr<Store> store, Accounts& accounts);
  ~TierLoader();
  TierLoader(const TierLoader&) = delete;
  TierLoader& operator=(const TierLoader&) = delete;

  Store& store() { return *store_; }
  // Begins to bring all of a block of the store's to byte `at` on of a buffer, behind what the calling thread has
  // queued for it. Neither may end before the arrival.
  std::shared_ptr<TierLoad> bring(Block& from, Buffer& to, std::int64_t at);

 private:
  Pending begin(Block& from, Buffer& to, std::int64_t at);
  void carry(const Block& from, Block& to, std::int64_t at);
  void settle();

  std::unique_ptr<Store> store_;
  Device& device_;
  Staging staging_;                                   // where blocks are neither on the device nor in the host's memory
  std::array<Pending, Staging::kBuffers> under_way_;  // to or from each buffer, by the worker
  std::unique_ptr<SideStream> stream_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace zero
