// A simulated accelerator: LibTorch's backend under PrivateUse1, with the hazards of a GPU, each of which shows every
// time. Its memory faults when the host touches it; its streams run nothing before the host waits for them. It
// registers itself with LibTorch in every program that it is linked to. Thread-safe.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace zero::test::accelerator {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 8;

inline c10::Device device(c10::DeviceIndex index) {
  return {kType, index};
}

// Where a kernel finds what a device pointer points to. For the code of tasks alone.
void* shadow(const void* device_pointer);

// Memory of the device that a task uses.
struct Access {
  const void* pointer;
  std::size_t bytes;
  bool writes = false;
};

// Enqueues a kernel. Throws std::runtime_error if a range does not lie in a block of the stream's device ("not memory
// of the device", "use after free"). `task` runs later, on any thread that waits; it neither blocks nor uses the
// device, but for shadow(). What it throws is thrown by the next synchronisation of the host, once, as are the faults
// of the device. A block that is freed while a task that uses it is neither done, nor ordered before the stream it was
// allocated on, nor on a stream it was recorded on, is such a fault.
void launch(c10::Stream stream, const std::vector<Access>& ranges, std::function<void()> task);

enum class Mode {
  lazy,    // tasks run as late as possible: in a synchronisation that needs them
  eager,   // tasks run as they are enqueued
  random,  // tasks of any stream run whenever something is enqueued, by chance
};
// Runs what is enqueued. The seed is for Mode::random.
void set_mode(Mode mode, std::uint64_t seed = 0);

// What a thread is at when it has one stream wait for another, of an engine's own or of copies, or waits itself.
enum class Site { other, begin, join, follow, copy, copied, finish };
class AtSite {
 public:
  explicit AtSite(Site site);
  ~AtSite();
  AtSite(const AtSite&) = delete;
  AtSite& operator=(const AtSite&) = delete;

 private:
  Site before_;
};
// How many waits there were at a site since reset(), but for those that change nothing; and which of them, or all, are
// left out from now on.
std::int64_t waits(Site site);
void leave_out(Site site, std::optional<std::int64_t> number = {});
// How often threads of the host have waited for a device: for a stream, an event, a copy to the host, a number.
std::int64_t synchronisations();

// Whether two uses of the same bytes on two streams, one of which writes, that no event or synchronisation orders are a
// fault. If not, as at first, they show in the values alone. In the mode eager nothing is unordered.
void set_race_faults(bool on);

// Faults of the device are counted from now on, and not thrown. Until reset().
void count_faults();
std::int64_t counted_faults();

// Allocations that would exceed it throw c10::OutOfMemoryError. A GPU's allocator has the same room for all streams.
void set_capacity(c10::DeviceIndex device, std::int64_t bytes);

struct Statistics {
  std::int64_t allocated;    // bytes of live blocks, and of freed ones that recorded streams may still use
  std::int64_t peak;         // the most of `allocated` since reset()
  std::int64_t reserved;     // as `allocated`, and what is freed by tasks that did not run yet
  std::int64_t cached;       // what LibTorch's caching allocator would have reserved by now, from reset() on
  std::int64_t allocations;  // since reset()
  std::int64_t live_blocks;
};
Statistics statistics(c10::DeviceIndex device);

inline std::int64_t live_blocks(c10::DeviceIndex device) {
  return statistics(device).live_blocks;
}

// Runs all that is enqueued on the device, and throws the first fault since the last synchronisation.
void synchronize(c10::DeviceIndex device);

// Runs what is enqueued, forgets faults, and sets all back: lazy, no race faults, no capacity, device 0 and its default
// stream for this thread. Throws std::runtime_error if blocks are live.
void reset();

}  // namespace zero::test::accelerator
