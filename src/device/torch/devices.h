// Which devices there are, by LibTorch's names for them.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>
#include <memory>

#include "device/device.h"
#include "zero/devices.h"

namespace zero {

// The door to a device. Lives as long as the process. Throws ConfigError where this build has none to one of its kind.
// Thread-safe.
Device& device_at(c10::Device where);

// A kind alone is the thread's current device of it.
inline c10::Device with_index(c10::Device device) {
  if (device.is_cpu() || device.is_meta() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

// What makes the doors to devices of a kind, one for each index, when they are first asked for. Thread-safe.
using MakeDevice = std::function<std::unique_ptr<Device>(c10::Device where)>;
void register_devices(c10::DeviceType kind, MakeDevice make);

}  // namespace zero
