// The devices on which engines train, by LibTorch's names for them: the host, and what LibTorch and libzero were built
// for.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>

#include "zero/error.h"
#include "zero/world.h"

namespace zero {

// Whether this build of libzero trains on devices of that kind. Thread-safe.
bool has_devices(c10::DeviceType kind);

// How many of them this process can use: 0, too, where LibTorch was built without that kind. Thread-safe, as the
// next.
inline int device_count(c10::DeviceType kind) {
  return c10::impl::hasDeviceGuardImpl(kind) ? c10::impl::VirtualGuardImpl(kind).deviceCount() : 0;
}

// A GPU where there is one on which engines train, else the CPU.
inline c10::Device usual_device() {
  return has_devices(c10::kCUDA) && device_count(c10::kCUDA) > 0 ? c10::kCUDA : c10::kCPU;
}

// What `wanted` means for a rank. Where it has no index, the ranks of a host have one device each, in their order, and
// share them where they are more. Throws ConfigError where there is no such device, or none on which engines train.
// Not collective.
inline c10::Device device_of(const World& world, c10::Device wanted = usual_device()) {
  const int count = has_devices(wanted.type()) ? device_count(wanted.type()) : 0;
  if (count == 0 || wanted.index() >= count)
    throw ConfigError(
        "there is no device '" + wanted.str() + "' to train on: of its kind there are " + std::to_string(count),
        "name another, or the CPU");
  if (wanted.is_cpu() || wanted.has_index()) return wanted;
  return {wanted.type(), static_cast<c10::DeviceIndex>(world.local_rank() % count)};
}

}  // namespace zero
