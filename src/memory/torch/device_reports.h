// Hears of the memory of a device's tensors, by the slot of a thread to which LibTorch's allocators of devices report.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <optional>
#include <utility>

namespace zero {

class MemoryObserver;

// While it lives, the observer is told of what this thread allocates and frees on the device. Who had the slot before
// is told as well; where that is a profiler of LibTorch's, which would look for itself there, it does not see this
// thread's operators. Begins and ends on the same thread.
class DeviceReports {
 public:
  DeviceReports(c10::Device device, MemoryObserver& observer);
  DeviceReports(const DeviceReports&) = delete;
  DeviceReports& operator=(const DeviceReports&) = delete;

 private:
  std::optional<at::DisableRecordFunctionGuard> unseen_;
  c10::DebugInfoGuard guard_;
};

// While it lives, what this thread allocates on a device is no tensor's: who takes it books it.
class Booking {
 public:
  Booking() : before_(std::exchange(now(), true)) {}
  ~Booking() { now() = before_; }
  Booking(const Booking&) = delete;
  Booking& operator=(const Booking&) = delete;

  static bool& now();

 private:
  bool before_;
};

}  // namespace zero
