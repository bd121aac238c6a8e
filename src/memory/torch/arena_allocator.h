// LibTorch's allocator for the CPU, on an Arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace zero {

// From now on tensors of the CPU of 128 KiB and more come from an arena of the process; smaller ones come
// from where they came before. Once; calls after the first do nothing. Thread-safe.
void use_arena();

// From now on tensors of the CPU come from the same allocator, but until use_arena() from where they came before.
// Thread-safe.
void use_reporting_allocator();

// Memory for `bytes` bytes from where tensors of the CPU get it, but no tensor's: nobody observes it.
// Uninitialised, aligned to 64 bytes.
std::shared_ptr<void> host_memory(std::size_t bytes);

// The same for what stays: on huge pages, as far as it fills them, where the system has them.
std::shared_ptr<void> lasting_memory(std::size_t bytes);

// For tests of what happens when memory ends: called, on the thread that asks, before a block is taken here for a
// tensor or another; what it throws goes to who asked. Null: none.
using AllocationProbe = void (*)(std::size_t bytes);
void set_allocation_probe(AllocationProbe probe);

// For tests of what is read before it was written: memory that is taken here, or filled(), from now on begins as this
// byte over and over. None: as it happens to be.
void fill_new_memory(std::optional<unsigned char> byte);
// New memory from elsewhere.
std::shared_ptr<void> filled(std::shared_ptr<void> memory, std::size_t bytes);

// What was freed and is not used again soon goes back to the system, if the arena is used.
void trim_arena();

// Told of the memory of tensors that comes and goes on a thread, if the arena is used.
class MemoryObserver {
 public:
  virtual ~MemoryObserver() = default;
  // About to be taken: what lives may be freed here.
  virtual void allocating(std::size_t bytes) { static_cast<void>(bytes); }
  virtual void allocated(void* data, std::size_t bytes) = 0;
  virtual void freed(void* data) = 0;
};
// This thread's; null: none.
MemoryObserver* memory_observer();
void observe_memory(MemoryObserver* observer);

// Told of all memory of tensors of the CPU that is freed from now on, before it is, on whatever thread that happens.
// One call at a time, in which no such memory is freed.
class EndListener {
 public:
  virtual ~EndListener() = default;
  virtual void ends(const void* data) = 0;
};
// Thread-safe. When the second returns the listener hears no more.
void add_listener(EndListener* listener);
void remove_listener(EndListener* listener);

// `memory` from elsewhere, which counts as HostUsage::elsewhere as long as the result lives.
std::shared_ptr<void> counted(std::shared_ptr<void> memory, std::size_t bytes);

// What the process has from here, in bytes.
struct HostUsage {
  const void* arena_begin = nullptr;  // of its address space; null: it is not used
  const void* arena_end = nullptr;
  std::int64_t arena_live = 0;     // pages, and blocks that lie where they were planned
  std::int64_t arena_waiting = 0;  // pages held for reuse, of ranges for such blocks too
  std::int64_t small = 0;          // of tensors, from malloc
  std::int64_t lasting = 0;        // in mappings of lasting_memory()'s own
  std::int64_t elsewhere = 0;      // counted(), and of host_memory() what is from malloc

  std::int64_t reserved() const { return arena_live + arena_waiting + small + lasting + elsewhere; }
};
HostUsage host_usage();

}  // namespace zero
