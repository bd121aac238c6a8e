// Engines on the simulated accelerator.
#pragma once

#include <atomic>
#include <memory>

#include "device/fixture.h"
#include "device/simulated_device.h"
#include "ranks/lm.h"

namespace zero::test {

// The model of each rank on the CPU, or on a device of its own: LibTorch has one thread for the backwards of a device,
// on which ranks that are threads would wait for each other.
inline Course<Lm> lm_on(at::DeviceType kind, double dropout) {
  const auto made = std::make_shared<std::atomic<int>>(0);
  return {.make = [=] {
    auto model = std::make_shared<Lm>(dropout);
    model->to(kind == at::kCPU ? at::Device(kind) : accelerator::device((*made)++ % accelerator::kDevices));
    return model;
  }};
}

class ModelsOnDevices : public accelerator::OnTheDevice {
 protected:
  void SetUp() override {
    OnTheDevice::SetUp();
    accelerator::set_race_faults(true);
    install_simulated_device();
  }
};

}  // namespace zero::test
