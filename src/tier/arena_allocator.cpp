#include "tier/arena_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <new>

#include "tier/arena.h"

namespace zero {
namespace {

constexpr std::size_t kLeastBlock = 128 * 1024;
constexpr std::size_t kHugePage = 2 * 1024 * 1024;
constexpr std::size_t kTimesMemory = 4;  // address space, so that ranges are easy to find

std::size_t physical_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
}

thread_local MemoryObserver* observer = nullptr;
std::atomic<bool> in_use = false;

class ArenaAllocator final : public c10::Allocator {
 public:
  ArenaAllocator() : arena_(kTimesMemory * physical_memory()) {}

  // Never destroyed: tensors may outlive every static object.
  static ArenaAllocator& instance() {
    static auto* const allocator = new ArenaAllocator;
    return *allocator;
  }

  Arena& arena() { return arena_; }
  // Null for what is small.
  void* take(std::size_t bytes) { return bytes < kLeastBlock ? nullptr : arena_.take(bytes); }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = take(bytes);
    if (data == nullptr) data = c10::alloc_cpu(bytes);
    if (data != nullptr) tell_allocated(data, arena_.owns(data) ? bytes : malloc_usable_size(data));
    return {data, data, &free, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static void free(void* data) {
    if (data == nullptr) return;
    ArenaAllocator& self = instance();
    if (observer != nullptr) observer->freed(data);
    if (self.arena_.owns(data)) {
      self.report(data, -static_cast<std::int64_t>(self.arena_.give(data)));
    } else {
      self.report(data, -static_cast<std::int64_t>(malloc_usable_size(data)));
      c10::free_cpu(data);
    }
  }

  void tell_allocated(void* data, std::size_t bytes) {
    if (observer != nullptr) observer->allocated(data, bytes);
    report(data, static_cast<std::int64_t>(bytes));
  }

  // To LibTorch's profiler.
  void report(void* data, std::int64_t bytes) {
    const auto total = total_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (c10::memoryProfilingEnabled())
      c10::reportMemoryUsageToProfiler(data, bytes, static_cast<std::size_t>(total), 0,
                                       c10::Device(c10::DeviceType::CPU));
  }

  Arena arena_;
  std::atomic<std::int64_t> total_ = 0;
};

}  // namespace

void use_arena() {
  static const bool once = (c10::SetCPUAllocator(&ArenaAllocator::instance()), in_use = true);
  static_cast<void>(once);
}

std::shared_ptr<void> host_memory(std::size_t bytes) {
  void* const data = in_use ? ArenaAllocator::instance().take(bytes) : nullptr;
  if (data == nullptr) return {c10::alloc_cpu(bytes), c10::free_cpu};
  return {data, [](void* block) { ArenaAllocator::instance().arena().give(block); }};
}

// Aligned to huge pages. The last of them, which it would not fill, it takes in small ones.
std::shared_ptr<void> lasting_memory(std::size_t bytes) {
  if (bytes < kHugePage) return host_memory(bytes);
  const std::size_t size = bytes + kHugePage;
  void* const room = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  const auto begin = reinterpret_cast<std::uintptr_t>(room);
  const auto aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  void* const data = reinterpret_cast<void*>(aligned);
  madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return {data, [room, size](void*) { munmap(room, size); }};
}

void trim_arena() {
  if (in_use) ArenaAllocator::instance().arena().trim();
}

MemoryObserver* memory_observer() {
  return observer;
}

void observe_memory(MemoryObserver* observing) {
  observer = observing;
}

}  // namespace zero
