// Sees what LibTorch's operators allocate and free on this thread, and books it as activations. By the
// allocator that init() installs: where that is not in use nothing is seen, nor on a device.
//
// Thread-safety: one thread.
#pragma once

#include <unordered_map>

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

  void allocated(void* data, std::size_t bytes) override;
  void freed(void* data) override;

 private:
  Accounts& accounts_;
  std::unordered_map<void*, std::int64_t> sizes_;  // of what was seen coming
};

}  // namespace zero
