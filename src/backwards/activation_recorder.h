// Sees what LibTorch's operators allocate and free on this thread, and books it as activations. By the
// allocator that init() installs: where that is not in use nothing is seen, nor on a device, of which whoever knows
// says what is held.
//
// Thread-safety: one thread.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "backwards/accounts.h"
#include "memory/torch/arena_allocator.h"

namespace zero {

class ActivationRecorder final : public MemoryObserver {
 public:
  explicit ActivationRecorder(Accounts& accounts) : accounts_(accounts) {}
  ~ActivationRecorder() override { stop(); }
  ActivationRecorder(const ActivationRecorder&) = delete;
  ActivationRecorder& operator=(const ActivationRecorder&) = delete;

  // What happens between start() and stop(), as often as they come, is seen.
  void start();
  void stop();
  // What was seen so far and still lives counts no more: what follows is another micro-batch.
  void forget();

  // On a device: what is held now, for who has counted it since the micro-batch began.
  void hold(std::int64_t micro_batch, std::int64_t bytes);
  std::int64_t micro_batch() const { return micro_batch_; }  // its number

  // Whether it sees for itself: of an engine on the host.
  bool observes() const { return accounts_.device().is_host(); }
  // What lives of it, in bytes; and of one block, 0 where it was not seen.
  std::int64_t held() const { return held_; }
  std::int64_t bytes_of(const void* data) const;
  // Asked before memory is taken; null: nobody.
  void ask(std::function<void(std::int64_t bytes)> before) { before_ = std::move(before); }

  void allocating(std::size_t bytes) override;
  void allocated(void* data, std::size_t bytes) override;
  void freed(void* data) override;

 private:
  Accounts& accounts_;
  ska::flat_hash_map<const void*, std::int64_t> sizes_;  // of what was seen coming
  std::int64_t held_ = 0;
  std::int64_t micro_batch_ = 0;
  std::function<void(std::int64_t)> before_;
};

}  // namespace zero
