// Collectives over memory of a device, by a group that works on the host's: what is sent is brought to the host first,
// what comes is taken to the device. No torch.
#pragma once

#include <memory>

#include "device/device.h"
#include "zero/communicator.h"

namespace zero {

// `inner`, for views of `device`, which stays; groups split from it are, too. Operations on a device's memory are
// complete when the call returns, but for the last copy, which is queued on the calling thread's current stream.
std::shared_ptr<CommunicatorImpl> staged(std::shared_ptr<CommunicatorImpl> inner, Device& device);

}  // namespace zero
