// LibTorch's allocator for the CPU, on an Arena.
#pragma once

#include <cstddef>
#include <memory>

namespace zero {

// From now on tensors of the CPU of 128 KiB and more come from an arena of the process; smaller ones come
// from where they came before. Once; calls after the first do nothing. Thread-safe.
void use_arena();

// Memory for `bytes` bytes from where tensors of the CPU get it, but no tensor's: nobody observes it.
// Uninitialised, aligned to 64 bytes.
std::shared_ptr<void> host_memory(std::size_t bytes);

// The same for what stays: on huge pages, as far as it fills them, where the system has them.
std::shared_ptr<void> lasting_memory(std::size_t bytes);

// What was freed and is not used again soon goes back to the system, if the arena is used.
void trim_arena();

// Told of the memory of tensors that comes and goes on a thread, if the arena is used.
class MemoryObserver {
 public:
  virtual ~MemoryObserver() = default;
  virtual void allocated(void* data, std::size_t bytes) = 0;
  virtual void freed(void* data) = 0;
};
// This thread's; null: none.
MemoryObserver* memory_observer();
void observe_memory(MemoryObserver* observer);

}  // namespace zero
