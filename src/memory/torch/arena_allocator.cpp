#include "memory/torch/arena_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "base/huge_pages.h"
#include "memory/arena.h"
#include "memory/planned_blocks.h"
#include "memory/planned_range.h"
#include "memory/torch/small_blocks.h"

namespace zero {
namespace {

constexpr std::size_t kLeastBlock = 128 * 1024;
constexpr std::size_t kTimesMemory = 4;  // address space, so that ranges are easy to find; once more for planned ones

std::size_t physical_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
}

thread_local MemoryObserver* observer = nullptr;
std::atomic<AllocationProbe> probe = nullptr;
constexpr int kNotFilled = -1;
std::atomic<int> new_byte = kNotFilled;

// Of the thread's small blocks.
thread_local PlannedBlocks* taking_small = nullptr;  // while what it takes is of its stretch
thread_local bool no_more_small = false;             // it ends

struct SmallBlocks {
  explicit SmallBlocks(AddressLots& lots) : blocks(lots) {}
  ~SmallBlocks() {
    taking_small = nullptr;
    no_more_small = true;
  }
  SmallBlocks(const SmallBlocks&) = delete;
  SmallBlocks& operator=(const SmallBlocks&) = delete;

  PlannedBlocks blocks;
};

void fill_new(void* data, std::size_t bytes) {
  const int byte = new_byte.load(std::memory_order_relaxed);
  if (byte != kNotFilled && data != nullptr) std::memset(data, byte, bytes);
}

void ask_probe(std::size_t bytes) {
  if (const AllocationProbe ask = probe.load(std::memory_order_relaxed)) ask(bytes);
}

class Listeners {
 public:
  void add(EndListener* listener) {
    const std::lock_guard lock(mutex_);
    all_.push_back(listener);
    any_ = true;
  }
  void remove(EndListener* listener) {
    const std::lock_guard lock(mutex_);
    std::erase(all_, listener);
    any_ = !all_.empty();
  }
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }
  void tell(const void* data) {
    if (!any_.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(mutex_);
    for (EndListener* listener : all_) listener->ends(data);
  }

 private:
  std::mutex mutex_;
  std::vector<EndListener*> all_;
  std::atomic<bool> any_ = false;
};

class ArenaAllocator final : public c10::Allocator {
 public:
  // Never destroyed: tensors may outlive every static object.
  static ArenaAllocator& instance() {
    static auto* const allocator = new ArenaAllocator;
    return *allocator;
  }

  void use_arena() {
    const std::size_t planned = physical_memory() / Arena::system_page() * Arena::system_page();
    static Arena* const arena = new Arena(kTimesMemory * physical_memory(), Arena::system_page(), planned);
    static AddressLots* const lots = new AddressLots(arena->beside(), planned, Arena::system_page());
    lots_ = lots;
    arena_.store(arena, std::memory_order_release);
    static const int failed = pthread_atfork(before_fork, after_fork, after_fork);
    if (failed != 0) throw std::bad_alloc();
  }
  // Null while it is not used.
  Arena* arena() const { return arena_.load(std::memory_order_acquire); }
  // Null likewise.
  AddressLots* lots() const { return arena() == nullptr ? nullptr : lots_.load(std::memory_order_relaxed); }
  // Null for what is small.
  void* take(std::size_t bytes) {
    Arena* const arena = this->arena();
    return bytes < kLeastBlock || arena == nullptr ? nullptr : arena->take(bytes);
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    ask_probe(bytes);
    if (observer != nullptr) observer->allocating(bytes);
    void* data = take(bytes);
    if (data == nullptr && taking_small != nullptr) data = taking_small->take(bytes);
    const bool ours = data != nullptr;
    if (!ours) data = c10::alloc_cpu(bytes);
    fill_new(data, bytes);
    if (!ours && taking_small != nullptr) taking_small->took(data);
    if (data != nullptr) tell_allocated(data, bytes, ours ? bytes : malloc_usable_size(data), ours);
    return {data, data, &free, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

  Listeners& listeners() { return listeners_; }
  std::int64_t small() const { return small_.load(std::memory_order_relaxed); }

 private:
  // What listens may free.
  static void before_fork() {
    instance().listeners_.before_fork();
    instance().arena()->before_fork();
  }
  static void after_fork() {
    instance().arena()->after_fork();
    instance().listeners_.after_fork();
  }

  static void free(void* data) {
    if (data == nullptr) return;
    ArenaAllocator& self = instance();
    if (observer != nullptr) observer->freed(data);
    if (taking_small != nullptr) taking_small->freed(data);
    self.listeners_.tell(data);
    if (Arena* const arena = self.arena(); arena != nullptr && arena->owns(data)) {
      self.report_end(data, static_cast<std::int64_t>(arena->give(data)));
    } else if (AddressLots* const lots = self.lots(); lots != nullptr && lots->owns(data)) {
      self.report_end(data, static_cast<std::int64_t>(lots->give(data)));
    } else {
      const auto bytes = static_cast<std::int64_t>(malloc_usable_size(data));
      self.small_.fetch_sub(bytes, std::memory_order_relaxed);
      self.report_end(data, bytes);
      c10::free_cpu(data);
    }
  }

  // To LibTorch's profiler the size with which the block will end, to others the one that was asked for.
  void tell_allocated(void* data, std::size_t asked, std::size_t bytes, bool ours) {
    if (observer != nullptr) observer->allocated(data, bytes);
    if (!ours) small_.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
    const auto total = total_.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
    if (c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) == nullptr) return;
    report(data, static_cast<std::int64_t>(c10::memoryProfilingEnabled() ? bytes : asked),
           total + static_cast<std::int64_t>(bytes));
  }
  // Others than the profiler are listeners.
  void report_end(void* data, std::int64_t bytes) {
    const auto total = total_.fetch_sub(bytes, std::memory_order_relaxed) - bytes;
    if (c10::memoryProfilingEnabled()) report(data, -bytes, total);
  }
  static void report(void* data, std::int64_t bytes, std::int64_t total) {
    c10::reportMemoryUsageToProfiler(data, bytes, static_cast<std::size_t>(total), 0,
                                     c10::Device(c10::DeviceType::CPU));
  }

  std::atomic<Arena*> arena_ = nullptr;
  std::atomic<AddressLots*> lots_ = nullptr;
  Listeners listeners_;
  std::atomic<std::int64_t> total_ = 0;
  std::atomic<std::int64_t> small_ = 0;  // of total_, from malloc
};

// Null before the arena is used.
PlannedBlocks* small_of_thread() {
  AddressLots* const lots = ArenaAllocator::instance().lots();
  if (lots == nullptr || no_more_small) return nullptr;
  static thread_local SmallBlocks here(*lots);
  return &here.blocks;
}

std::atomic<std::int64_t> lasting = 0;
std::atomic<std::int64_t> elsewhere = 0;

// As long as it lives, the memory is part of the sum.
std::shared_ptr<void> counted_in(std::atomic<std::int64_t>& sum, std::shared_ptr<void> memory, std::size_t bytes) {
  void* const data = memory.get();
  sum += static_cast<std::int64_t>(bytes);
  return {data, [&sum, memory = std::move(memory), bytes](void*) { sum -= static_cast<std::int64_t>(bytes); }};
}

}  // namespace

void use_reporting_allocator() {
  static const bool once = (c10::SetCPUAllocator(&ArenaAllocator::instance()), true);
  static_cast<void>(once);
}

void use_arena() {
  ArenaAllocator::instance().use_arena();
  use_reporting_allocator();
}

void set_allocation_probe(AllocationProbe ask) {
  probe = ask;
}

void fill_new_memory(std::optional<unsigned char> byte) {
  new_byte = byte ? *byte : kNotFilled;
}

std::shared_ptr<void> filled(std::shared_ptr<void> memory, std::size_t bytes) {
  fill_new(memory.get(), bytes);
  return memory;
}

std::shared_ptr<void> host_memory(std::size_t bytes) {
  ask_probe(bytes);
  void* const data = ArenaAllocator::instance().take(bytes);
  if (data == nullptr) return counted(filled({c10::alloc_cpu(bytes), c10::free_cpu}, bytes), bytes);
  fill_new(data, bytes);
  return {data, [](void* block) { ArenaAllocator::instance().arena()->give(block); }};
}

std::shared_ptr<void> lasting_memory(std::size_t bytes) {
  if (bytes < kHugePage) return host_memory(bytes);
  ask_probe(bytes);
  return counted_in(lasting, filled(huge_page_memory(bytes), bytes), bytes);
}

std::shared_ptr<void> counted(std::shared_ptr<void> memory, std::size_t bytes) {
  return counted_in(elsewhere, std::move(memory), bytes);
}

void trim_arena() {
  if (Arena* const arena = ArenaAllocator::instance().arena()) arena->trim();
}

void add_listener(EndListener* listener) {
  ArenaAllocator::instance().listeners().add(listener);
}

void remove_listener(EndListener* listener) {
  ArenaAllocator::instance().listeners().remove(listener);
}

HostUsage host_usage() {
  const ArenaAllocator& allocator = ArenaAllocator::instance();
  HostUsage usage{.small = allocator.small(), .lasting = lasting, .elsewhere = elsewhere};
  if (const Arena* const arena = allocator.arena()) {
    usage.arena_begin = arena->begin();
    usage.arena_end = arena->end();
    const Arena::Usage pages = arena->usage();
    usage.arena_live = static_cast<std::int64_t>(pages.live);
    usage.arena_waiting = static_cast<std::int64_t>(pages.waiting);
    const AddressLots::Usage planned = allocator.lots()->usage();
    usage.arena_live += planned.live;
    usage.arena_waiting += planned.held - planned.live;
  }
  return usage;
}

void small_blocks::begin() {
  if (PlannedBlocks* const blocks = small_of_thread()) blocks->begin();
}

void small_blocks::resume() {
  taking_small = small_of_thread();
}

void small_blocks::pause() {
  taking_small = nullptr;
}

bool small_blocks::planned() {
  const PlannedBlocks* const blocks = small_of_thread();
  return blocks != nullptr && blocks->follows();
}

MemoryObserver* memory_observer() {
  return observer;
}

void observe_memory(MemoryObserver* observing) {
  observer = observing;
}

}  // namespace zero
