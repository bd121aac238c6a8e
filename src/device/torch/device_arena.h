// Memory of constant size on a device, for pieces that come and go in the middle of a step, apart from the blocks of
// the program's own that the device's allocator has between them (M_D of ZeRO-R, section 5.2.3 of the ZeRO paper: no
// fragmentation). A piece may be given back while kernels use it: events tell the streams on which it is used again,
// so that neither the host nor the memory waits for them.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"

namespace zero {

// Of the calling thread.
c10::Stream current_stream(c10::Device where);

// Pieces keep it alive. Thread-safe.
class DeviceArena : public std::enable_shared_from_this<DeviceArena> {
 public:
  static constexpr std::size_t kAlign = Device::Arena::kAlign;

  // Of memory that was taken on the calling thread's current stream.
  DeviceArena(c10::DataPtr memory, std::size_t bytes);
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // Uninitialised, for the calling thread's current stream and what that one is told of; null where there is no room in
  // one piece. Given back, it is used again behind what that stream, and the one then current, have been queued.
  std::shared_ptr<void> take(std::size_t bytes);

 private:
  // What a range's next user has to come behind.
  struct Fence {
    c10::Stream stream;
    std::shared_ptr<c10::Event> event;
    std::size_t number;
  };
  struct Range {
    std::size_t bytes;
    std::vector<Fence> fences;
  };
  using Ranges = std::map<std::size_t, Range>;

  void give(std::size_t begin, std::size_t bytes, c10::Stream taken_on);
  void fence(Range& range, c10::Stream stream);
  static void join(Range& range, Range& other);

  c10::DataPtr memory_;
  c10::Stream stream_;  // on which it was taken
  std::mutex mutex_;
  Ranges free_;  // by where they begin; neighbours are joined
  std::size_t fences_ = 0;
};

}  // namespace zero
