// Engines on the simulated accelerator.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "device/fixture.h"
#include "device/simulated_device.h"
#include "ranks/lm.h"

namespace zero::test {

// The model of each rank on the CPU, or on a device of its own: LibTorch has one thread for the backwards of a device,
// on which ranks that are threads would wait for each other.
template <class Model>
Course<Model> course_on(at::DeviceType kind, std::function<std::shared_ptr<Model>()> make = Course<Model>().make) {
  const auto made = std::make_shared<std::atomic<int>>(0);
  return {.make = [=] {
    auto model = make();
    model->to(kind == at::kCPU ? at::Device(kind) : accelerator::device((*made)++ % accelerator::kDevices));
    return model;
  }};
}

inline Course<Lm> lm_on(at::DeviceType kind, double dropout) {
  return course_on<Lm>(kind, [=] { return std::make_shared<Lm>(dropout); });
}

class ModelsOnDevices : public accelerator::OnTheDevice {
 protected:
  void SetUp() override {
    OnTheDevice::SetUp();
    accelerator::set_race_faults(true);
    install_simulated_device();
  }
};

// Whether a run that leaves out waits is noticed: by other bits, by an error, or as a fault of the device.
inline bool noticed(const Outcome& expected, const std::function<Outcome()>& run) {
  try {
    if (!difference(expected, run()).empty()) return true;
  } catch (const std::exception&) {
    return true;
  }
  return accelerator::counted_faults() > 0;
}

}  // namespace zero::test
