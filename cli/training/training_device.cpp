#include "cli/training/training_device.h"

#include <c10/util/Exception.h>

#include <utility>
#include <vector>

#include "base/text.h"
#include "cli/options/device_option.h"
#include "zero/devices.h"

namespace cli {
namespace {

// "the CPU and 2 devices of kind cuda".
std::string what_there_is() {
  std::vector<std::string> kinds{"the CPU"};
  for (int i = 0; i < c10::COMPILE_TIME_MAX_DEVICE_TYPES; ++i) {
    const auto kind = static_cast<c10::DeviceType>(i);
    const int count = zero::device_count(kind);
    if (kind != c10::kCPU && count > 0 && zero::has_devices(kind))
      kinds.push_back(std::to_string(count) + (count == 1 ? " device of kind " : " devices of kind ") +
                      c10::DeviceTypeName(kind, /*lower_case=*/true));
  }
  return zero::joined(kinds, " and ");
}

[[noreturn]] void refuse(const std::string& fault, const std::string& advice) {
  throw UsageError("--device: " + fault + ": this host has " + what_there_is() + "; " + advice);
}

c10::DeviceType kind_named(const std::string& name) try { return c10::Device(name).type(); } catch (const c10::Error&) {
  refuse("LibTorch knows no kind of device " + zero::in_quotes(name), "give one of these");
}

c10::Device checked(const std::string& name) {
  const auto [kind, index] = device_named(name);
  const c10::DeviceType type = kind_named(kind);
  const std::string of_kind = "devices of kind " + zero::in_quotes(kind);
  if (!c10::impl::hasDeviceGuardImpl(type))
    refuse("this LibTorch was built without " + of_kind, "use one that has them, or give --device cpu");
  if (!zero::has_devices(type))
    refuse("this libzero was not built for " + of_kind, "use one that is, or give --device cpu");
  const int count = zero::device_count(type);
  if (count == 0 || index >= count) refuse("there is no device " + zero::in_quotes(name), "give one of these");
  return type == c10::kCPU ? c10::kCPU : c10::Device(type, static_cast<c10::DeviceIndex>(index));
}

template <class Options>
Options completed(Options options) {
  if (options.device.empty()) {
    options.device = zero::usual_device().str();
    options.command += " --device " + options.device;
  }
  checked(options.device);
  return options;
}

}  // namespace

RunOptions with_device(RunOptions options) {
  return completed(std::move(options));
}

EvalOptions with_device(EvalOptions options) {
  return completed(std::move(options));
}

c10::Device device_of(const zero::World& world, const std::string& name) {
  return zero::device_of(world, checked(name));
}

}  // namespace cli
