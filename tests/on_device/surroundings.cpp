// The tests of ranks on the simulated accelerator: a device for each rank, joined by their own collectives.
#include "device/accelerator.h"
#include "device/linked.h"
#include "device/simulated_device.h"
#include "ranks/harness.h"

namespace zero::test {
namespace {

const bool kOnTheAccelerator = [] {
  install_simulated_device();
  accelerator::set_race_faults(true);
  surroundings().device = [](int rank) {
    return accelerator::device(static_cast<c10::DeviceIndex>(rank % accelerator::kDevices));
  };
  surroundings().joined = linked;
  surroundings().delay = [](std::optional<std::uint64_t> seed) {
    accelerator::set_mode(seed ? accelerator::Mode::random : accelerator::Mode::lazy, seed.value_or(0));
  };
  return true;
}();

}  // namespace
}  // namespace zero::test
