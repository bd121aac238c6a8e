// The allocators of the devices and of pinned memory, as LibTorch asks for them.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "device/runtime.h"

namespace zero::test::accelerator {
namespace {

constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::DeviceIndex index = current_device();
    void* address = accelerator::allocate(index, bytes);
    return {address, address, address ? &free_block : &c10::detail::deleteNothing, device(index)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    enqueue(current_stream(current_device()), {{source, bytes}, {target, bytes, true}},
            [=] { std::memcpy(shadow(target), shadow(source), bytes); });
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    const Lock lock;
    for (Memory& memory : runtime().memory) memory.cached.empty_cache();
  }
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override { record_stream(pointer.get(), stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    const Statistics ours = statistics(index);
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[kAll].current = ours.allocated;
    stats.allocated_bytes[kAll].peak = ours.peak;
    stats.reserved_bytes[kAll].current = ours.reserved;
    stats.allocation[kAll].current = ours.live_blocks;
    stats.allocation[kAll].allocated = ours.allocations;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    const Lock lock;
    runtime().memory.at(static_cast<std::size_t>(index)).allocations = 0;
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    const Lock lock;
    Memory& memory = runtime().memory.at(static_cast<std::size_t>(index));
    memory.peak = memory.allocated;
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const Lock lock;
    const Memory& memory = runtime().memory.at(static_cast<std::size_t>(index));
    return {memory.capacity - memory.allocated, memory.capacity};
  }
};

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::DeviceType::CPU};
    const std::size_t rounded = Memory::rounded(bytes);
    void* address = std::aligned_alloc(512, rounded);
    if (!address) throw std::bad_alloc();
    const Lock lock;
    ranges()[static_cast<const char*>(address)] = rounded;
    return {address, address, &free_pinned, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }

  static std::map<const char*, std::size_t>& ranges() {
    static auto* const kRanges = new std::map<const char*, std::size_t>;
    return *kRanges;
  }

 private:
  // Its last contents go, as what reads it later should not find them. Copies whose wait is left out still have it.
  static void free_pinned(void* address) {
    const Lock lock;
    Streams& streams = runtime().streams;
    if (streams.left_out) streams.run_all(0, kDevices * kStreamsOfADevice);
    const auto range = ranges().find(static_cast<const char*>(address));
    std::memset(address, 0xFF, range->second);
    ranges().erase(range);
    std::free(address);
  }
};

Allocator device_allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &device_allocator)

}  // namespace

c10::Allocator* pinned_allocator() {
  static auto* const kAllocator = new PinnedAllocator;
  return kAllocator;
}

bool is_pinned(const void* address) {
  const Lock lock;
  const auto& ranges = PinnedAllocator::ranges();
  const auto next = ranges.upper_bound(static_cast<const char*>(address));
  return next != ranges.begin() && address < std::prev(next)->first + std::prev(next)->second;
}

}  // namespace zero::test::accelerator
