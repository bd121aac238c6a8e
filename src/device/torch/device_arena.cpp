#include "device/torch/device_arena.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/elements.h"

namespace zero {

c10::Stream current_stream(c10::Device where) {
  return c10::impl::VirtualGuardImpl(where.type()).getStream(where);
}

DeviceArena::DeviceArena(c10::DataPtr memory, std::size_t bytes)
    : memory_(std::move(memory)), stream_(current_stream(memory_.device())) {
  free_[0] = {bytes / kAlign * kAlign, {}};
}

// The device's allocator knows of the stream on which the memory was taken alone, which a thread of the engine's own
// may have done that serves its peers.
DeviceArena::~DeviceArena() try {
  for (const auto& [begin, range] : free_)
    for (const Fence& each : range.fences)
      if (each.stream != stream_) each.event->block(stream_);
} catch (...) {
  // The device has failed, as whoever uses it next is told.
}

// The smallest range that is large enough.
std::shared_ptr<void> DeviceArena::take(std::size_t bytes) {
  const std::size_t whole = round_up(std::max<std::size_t>(bytes, 1), kAlign);
  const c10::Stream stream = current_stream(memory_.device());
  const std::lock_guard lock(mutex_);
  auto found = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range)
    if (range->second.bytes >= whole && (found == free_.end() || range->second.bytes < found->second.bytes))
      found = range;
  if (found == free_.end()) return nullptr;
  auto [begin, range] = std::move(*found);
  free_.erase(found);
  for (const Fence& each : range.fences)
    if (each.stream != stream) each.event->block(stream);
  if (range.bytes > whole) free_[begin + whole] = {range.bytes - whole, std::move(range.fences)};
  return {static_cast<char*>(memory_.get()) + begin,
          [arena = shared_from_this(), begin = begin, whole, stream](void*) { arena->give(begin, whole, stream); }};
}

void DeviceArena::give(std::size_t begin, std::size_t bytes, c10::Stream taken_on) {
  const c10::Stream now = current_stream(memory_.device());
  const std::lock_guard lock(mutex_);
  Range range{bytes, {}};
  fence(range, taken_on);
  if (now != taken_on) fence(range, now);
  const auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + bytes) {
    join(range, next->second);
    free_.erase(next);
  }
  const auto after = free_.lower_bound(begin);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second.bytes == begin) return join(before->second, range);
  }
  free_[begin] = std::move(range);
}

void DeviceArena::fence(Range& range, c10::Stream stream) {
  const auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  range.fences.push_back({stream, event, fences_++});
}

// Of a stream's events the latest is enough.
void DeviceArena::join(Range& range, Range& other) {
  range.bytes += other.bytes;
  for (Fence& each : other.fences) {
    const auto same = std::ranges::find(range.fences, each.stream, &Fence::stream);
    if (same == range.fences.end()) {
      range.fences.push_back(std::move(each));
    } else if (same->number < each.number) {
      *same = std::move(each);
    }
  }
}

}  // namespace zero
