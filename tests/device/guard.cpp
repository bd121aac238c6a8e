// Devices, streams and events, as c10::Stream, c10::Event and the guards ask for them.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <utility>

#include "device/runtime.h"

namespace zero::test::accelerator {
namespace {

constexpr c10::StreamId kPool = 4;

thread_local c10::DeviceIndex current = 0;
thread_local std::array<c10::StreamId, kDevices> current_ids{};

c10::Stream stream_of(c10::DeviceIndex index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device(index), id);
}

c10::DeviceIndex checked(c10::Device which) {
  TORCH_CHECK(which.type() == kType, which, " is not a device of the simulated accelerator");
  const c10::DeviceIndex index = which.has_index() ? which.index() : current;
  TORCH_CHECK(index >= 0 && index < kDevices, "there is no device ", which);
  return index;
}

Event& event_in(void* event) {
  return *static_cast<Event*>(event);
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Device getDevice() const override { return device(current); }
  void setDevice(c10::Device which) const override { current = checked(which); }
  void uncheckedSetDevice(c10::Device which) const noexcept override {
    if (which.has_index()) current = which.index();
  }
  c10::Device exchangeDevice(c10::Device which) const override {
    return device(std::exchange(current, checked(which)));
  }

  c10::Stream getStream(c10::Device which) const override { return current_stream(checked(which)); }
  c10::Stream getDefaultStream(c10::Device which) const override { return stream_of(checked(which), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device which, bool) const override {
    static std::atomic<c10::StreamId> next = 0;
    return stream_of(checked(which), 1 + next++ % kPool);
  }
  c10::Stream getNewStream(c10::Device which, int) const override {
    static std::atomic<c10::StreamId> next = 1 + kPool;
    return stream_of(checked(which), next++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(checked(stream.device()));
    set_current_stream(stream);
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    const Lock lock;
    const bool idle = runtime().streams.idle(key_of(stream));
    runtime().streams.advance(key_of(stream));
    return idle;
  }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream); }
  void synchronizeDevice(c10::DeviceIndex index) const override { synchronize(checked(device(index))); }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    record_stream(pointer.get(), stream);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex index, c10::EventFlag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "an event of device ", int{index},
                " is recorded on a stream of device ", int{stream.device_index()});
    const Lock lock;
    if (!*event) *event = new Event;
    event_in(*event) = runtime().streams.record(key_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (!event) return;
    const Lock lock;
    runtime().streams.wait(key_of(stream), event_in(event));
  }
  bool queryEvent(void* event) const override {
    if (!event) return true;
    const Lock lock;
    const Point& at = event_in(event).at;
    const bool reached = runtime().streams.reached(at);
    if (!reached) runtime().streams.advance(at.stream);
    return reached;
  }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    const Lock lock;
    ++runtime().streams.synchronisations;
    if (runtime().streams.leaves_out(event_in(event).at)) return;
    runtime().streams.run(event_in(event).at);
    runtime().streams.throw_fault();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

c10::DeviceIndex current_device() {
  return current;
}

void set_current_device(c10::DeviceIndex index) {
  current = checked(device(index));
}

c10::Stream current_stream(c10::DeviceIndex index) {
  return stream_of(index, current_ids[static_cast<std::size_t>(index)]);
}

void set_current_stream(c10::Stream stream) {
  current_ids[static_cast<std::size_t>(stream.device_index())] = stream.id();
}

void forget_currents() {
  current = 0;
  current_ids = {};
}

}  // namespace zero::test::accelerator
