#include "device/accelerator.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <limits>

#include "device/runtime.h"

namespace zero::test::accelerator {
namespace {

Memory& memory_of(c10::DeviceIndex device) {
  if (device < 0 || device >= kDevices) throw std::runtime_error(c10::str("there is no device ", int{device}));
  return runtime().memory[static_cast<std::size_t>(device)];
}

Memory* owner_of(const void* address) {
  for (Memory& memory : runtime().memory)
    if (memory.owns(address)) return &memory;
  return nullptr;
}

std::shared_ptr<Block> block_of(const Access& range) {
  Memory* memory = owner_of(range.pointer);
  if (!memory || !memory->handed_out(range.pointer))
    throw std::runtime_error(c10::str(range.pointer, " is not memory of the device"));
  std::shared_ptr<Block> block = memory->find(range.pointer);
  if (!block || block->freed) throw std::runtime_error(c10::str("use after free: ", range.pointer, " is in no block"));
  const char* end = static_cast<const char*>(range.pointer) + range.bytes;
  if (end > block->begin + block->bytes)
    throw std::runtime_error(c10::str(range.bytes, " bytes at ", range.pointer,
                                      " are not memory of the device: they end beyond a block of ", block->bytes));
  return block;
}

std::string name_of(Key stream) {
  return c10::str("stream ", stream % kStreamsOfADevice, " of device ", int{device_of(stream)});
}

void keep_fault(const std::string& what) noexcept {
  runtime().streams.keep(std::make_exception_ptr(std::runtime_error(what)));
}

void check_race(const Block& block, const Use& use) {
  const Streams& streams = runtime().streams;
  for (const Use& other : block.uses) {
    const bool overlap = use.begin < other.end && other.begin < use.end;
    if (overlap && (use.writes || other.writes) && !streams.ordered(use.at.stream, other.at))
      keep_fault(c10::str("race: ", name_of(use.at.stream), use.writes ? " writes" : " reads", " what ",
                          name_of(other.at.stream), other.writes ? " writes" : " reads", ", an event is missing"));
  }
}

void add_use(Block& block, const Use& use) {
  std::erase_if(block.uses, [](const Use& each) { return runtime().streams.reached(each.at); });
  if (runtime().race_faults) check_race(block, use);
  block.uses.push_back(use);
}

void add_use(const Access& range, Block& block, const Point& at) {
  const auto* begin = static_cast<const char*>(range.pointer);
  add_use(block, {at, begin, begin + range.bytes, range.writes});
}

void check_uses(const Block& block) {
  const Streams& streams = runtime().streams;
  const auto waited_for = [&](const Use& use) {
    return streams.ordered(block.stream, use.at) ||
           std::ranges::any_of(block.recorded, [&](Key stream) { return streams.ordered(stream, use.at); });
  };
  for (const Use& use : block.uses) {
    if (waited_for(use)) continue;
    keep_fault(c10::str("use after free: block ", static_cast<const void*>(block.begin), " of ", block.bytes,
                        " bytes is freed while ", name_of(use.at.stream), " still uses it, record_stream is missing"));
  }
}

// As allocators of GPUs do; negative for what is freed.
void report(const Memory& memory, c10::DeviceIndex index, const Block& block, std::int64_t sign) {
  c10::reportMemoryUsageToProfiler(block.begin, sign * static_cast<std::int64_t>(Memory::rounded(block.bytes)),
                                   static_cast<std::size_t>(memory.allocated),
                                   static_cast<std::size_t>(memory.reserved), accelerator::device(index));
}

bool make_room(Memory& memory, c10::DeviceIndex device, std::size_t bytes) {
  if (memory.has_room(bytes)) return true;
  runtime().streams.run_all(device * kStreamsOfADevice, (device + 1) * kStreamsOfADevice);
  return memory.has_room(bytes);
}

}  // namespace

Runtime& runtime() {
  static auto* const kRuntime = new Runtime;
  return *kRuntime;
}

Key key_of(c10::Stream stream) {
  return stream.device_index() * kStreamsOfADevice + static_cast<Key>(stream.id());
}

void* allocate(c10::DeviceIndex device, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const Lock lock;
  runtime().streams.refuse_in_task();
  Memory& memory = memory_of(device);
  TORCH_CHECK_WITH(OutOfMemoryError, make_room(memory, device, bytes), "device ", int{device},
                   " is out of memory: ", memory.allocated, " of ", memory.capacity, " bytes are allocated, ", bytes,
                   " more are asked for");
  const Key stream = key_of(current_stream(device));
  const std::shared_ptr<Block> block = memory.take(bytes, stream);
  memory.poison(*block);  // for who does not even wait for this stream
  const Point poisoned = runtime().streams.enqueue(stream, [&memory, block] { memory.poison(*block); });
  block->uses.push_back({poisoned, block->begin, block->begin + bytes, true});
  report(memory, device, *block, 1);
  return block->begin;
}

void free_block(void* address) noexcept {
  const Lock lock;
  Memory& memory = *owner_of(address);
  const std::shared_ptr<Block> block = memory.find(address);
  block->freed = true;
  check_uses(*block);
  memory.count_free(*block);
  report(memory, device_of(block->stream), *block, -1);
  const auto holders = std::make_shared<std::size_t>(1 + block->recorded.size());
  const auto let_go = [&memory, block, holders] {
    if (--*holders == 0) memory.release(*block);
  };
  runtime().streams.enqueue(block->stream, let_go);
  for (const Key stream : block->recorded) runtime().streams.enqueue(stream, let_go);
}

void record_stream(const void* address, c10::Stream stream) {
  if (!address) return;
  const Lock lock;
  const std::shared_ptr<Block> block = block_of({address, 0});
  if (key_of(stream) != block->stream) block->recorded.insert(key_of(stream));
}

void enqueue(c10::Stream stream, const std::vector<Access>& ranges, std::function<void()> task) {
  const Lock lock;
  runtime().streams.refuse_in_task();
  std::vector<std::pair<Access, std::shared_ptr<Block>>> used;
  for (const Access& range : ranges)
    if (range.bytes > 0) used.emplace_back(range, block_of(range));
  const Point done = runtime().streams.enqueue(key_of(stream), std::move(task));
  for (const auto& [range, block] : used) add_use(range, *block, done);
}

void touch(c10::Stream stream, const std::vector<Access>& ranges) {
  const Point now = runtime().streams.record(key_of(stream)).at;
  for (const Access& range : ranges)
    if (range.bytes > 0) add_use(range, *block_of(range), now);
}

void launch(c10::Stream stream, const std::vector<Access>& ranges, std::function<void()> task) {
  const Lock lock;
  for (const Access& range : ranges)
    if (range.bytes > 0 && !memory_of(stream.device_index()).owns(range.pointer))
      throw std::runtime_error(c10::str(range.pointer, " is not memory of the device: the stream is one of device ",
                                        int{stream.device_index()}));
  enqueue(stream, ranges, std::move(task));
}

bool of_device(const void* address, c10::DeviceIndex device) {
  return memory_of(device).owns(address);
}

void* shadow(const void* device_pointer) {
  if (!device_pointer) return nullptr;
  const Memory* memory = owner_of(device_pointer);
  if (!memory) throw std::runtime_error(c10::str(device_pointer, " is not memory of the device"));
  return memory->shadow(device_pointer);
}

void finish(c10::Stream stream) {
  runtime().streams.run(key_of(stream));
  runtime().streams.throw_fault();
}

void synchronize(c10::Stream stream) {
  const Lock lock;
  ++runtime().streams.synchronisations;
  finish(stream);
}

void synchronize(c10::DeviceIndex device) {
  const Lock lock;
  ++runtime().streams.synchronisations;
  runtime().streams.run_all(device * kStreamsOfADevice, (device + 1) * kStreamsOfADevice);
  runtime().streams.throw_fault();
}

void set_mode(Mode mode, std::uint64_t seed) {
  const Lock lock;
  Streams& streams = runtime().streams;
  streams.run_all(0, kDevices * kStreamsOfADevice);
  streams.eager = mode == Mode::eager;
  streams.chance.reset();
  if (mode == Mode::random) streams.chance.emplace(seed);
}

std::int64_t waits(Site site) {
  const Lock lock;
  return runtime().streams.waits[site];
}

void leave_out(Site site, std::optional<std::int64_t> number) {
  const Lock lock;
  runtime().streams.left_out = {site, number};
}

AtSite::AtSite(Site site) : before_(std::exchange(Streams::site(), site)) {}

AtSite::~AtSite() {
  Streams::site() = before_;
}

std::int64_t synchronisations() {
  const Lock lock;
  return runtime().streams.synchronisations;
}

void count_faults() {
  const Lock lock;
  runtime().streams.faults = 0;
}

std::int64_t counted_faults() {
  const Lock lock;
  return runtime().streams.faults.value_or(0);
}

void set_race_faults(bool on) {
  const Lock lock;
  runtime().race_faults = on;
}

void set_capacity(c10::DeviceIndex device, std::int64_t bytes) {
  const Lock lock;
  memory_of(device).capacity = bytes;
}

Statistics statistics(c10::DeviceIndex device) {
  const Lock lock;
  const Memory& memory = memory_of(device);
  return {memory.allocated, memory.peak, memory.reserved, memory.cached.reserved(), memory.allocations, memory.live};
}

void reset() {
  const Lock lock;
  set_mode(Mode::lazy);
  Streams& streams = runtime().streams;
  streams.forget_fault();
  streams.faults.reset();
  streams.waits.clear();
  streams.left_out.reset();
  runtime().race_faults = false;
  forget_currents();
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
    Memory& memory = memory_of(device);
    memory.capacity = std::numeric_limits<std::int64_t>::max();
    memory.peak = memory.allocated;
    memory.allocations = 0;
    memory.cached.empty_cache();
    if (memory.live > 0)
      throw std::runtime_error(c10::str(memory.live, " blocks of device ", int{device}, " are live"));
  }
}

}  // namespace zero::test::accelerator
