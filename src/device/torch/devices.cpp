#include "device/torch/devices.h"

#include <map>
#include <mutex>
#include <utility>

#include "device/torch/cuda_device.h"
#include "device/torch/host_device.h"
#include "zero/error.h"

namespace zero {
namespace {

class Devices {
 public:
  static Devices& instance() {
    static Devices* const devices = new Devices;  // for engines that end after everything static
    return *devices;
  }

  void add(c10::DeviceType kind, MakeDevice make) {
    const std::lock_guard lock(mutex_);
    makers_[kind] = std::move(make);
  }

  bool has(c10::DeviceType kind) {
    const std::lock_guard lock(mutex_);
    return makers_.contains(kind);
  }

  Device& at(c10::Device where) {
    const std::lock_guard lock(mutex_);
    const auto make = makers_.find(where.type());
    if (make == makers_.end())
      throw ConfigError("this build of libzero does not train on device '" + where.str() + "'",
                        "move the model to the CPU");
    std::unique_ptr<Device>& device = devices_[{where.type(), where.index()}];
    if (!device) device = make->second(where);
    return *device;
  }

 private:
  Devices() {
    makers_[c10::kCPU] = [](c10::Device) { return std::make_unique<HostDevice>(); };
    if (MakeDevice make = cuda_devices()) makers_[c10::kCUDA] = std::move(make);
  }

  std::mutex mutex_;
  std::map<c10::DeviceType, MakeDevice> makers_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::unique_ptr<Device>> devices_;
};

}  // namespace

Device& device_at(c10::Device where) {
  return Devices::instance().at(where);
}

bool has_devices(c10::DeviceType kind) {
  return Devices::instance().has(kind);
}

void register_devices(c10::DeviceType kind, MakeDevice make) {
  Devices::instance().add(kind, std::move(make));
}

}  // namespace zero
