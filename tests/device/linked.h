// Simulated devices that are linked: collectives that are kernels of their streams, as NCCL's are. Ranks are threads.
#pragma once

#include "zero/world.h"

namespace zero::test {

// `world`, of threads as ranks, each to have a device of its own; engines on the accelerator then exchange data by
// these collectives, and nothing of it passes through the host's memory.
World linked(const World& world);
// The same where two of them say that they have one device, so that data does pass through it.
World sharing_devices(const World& world);

}  // namespace zero::test
