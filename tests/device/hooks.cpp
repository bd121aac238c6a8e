// What LibTorch asks an accelerator for through its hooks, and generators.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include "device/runtime.h"

namespace zero::test::accelerator {
namespace {

// Draws what a generator of the CPU draws.
class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  DeviceGenerator(c10::DeviceIndex index, at::Generator host)
      : GeneratorImpl(accelerator::device(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host_(std::move(host)) {}

  void set_current_seed(std::uint64_t seed) override { host_.set_current_seed(seed); }
  void set_offset(std::uint64_t offset) override { host_.set_offset(offset); }
  std::uint64_t get_offset() const override { return host_.get_offset(); }
  std::uint64_t current_seed() const override { return host_.current_seed(); }
  std::uint64_t seed() override { return host_.seed(); }
  void set_state(const c10::TensorImpl& state) override { host_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host_.unsafeGetGeneratorImpl()->get_state(); }
  const at::Generator& host() const { return host_; }

 private:
  DeviceGenerator* clone_impl() const override { return new DeviceGenerator(device_.index(), host_.clone()); }

  at::Generator host_;
};

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<DeviceGenerator>(index, at::detail::createCPUGenerator());
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* const kGenerators = [] {
    auto* const all = new std::array<at::Generator, kDevices>;
    for (c10::DeviceIndex each = 0; each < kDevices; ++each)
      (*all)[static_cast<std::size_t>(each)] = new_generator(each);
    return all;
  }();
  return kGenerators->at(static_cast<std::size_t>(index < 0 ? current_device() : index));
}

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex before = current_device();
    set_current_device(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Device getDeviceFromPtr(void* address) const override {
    for (c10::DeviceIndex index = 0; index < kDevices; ++index)
      if (runtime().memory[static_cast<std::size_t>(index)].owns(address)) return accelerator::device(index);
    TORCH_CHECK(false, address, " is not memory of the device");
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(index < 0 ? current_device() : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

[[maybe_unused]] const bool kRegistered = [] {
  c10::register_privateuse1_backend("accelerator");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

at::Generator host_generator(const std::optional<at::Generator>& given, c10::Device device) {
  const at::Generator& generator = given && given->defined() ? *given : default_generator(device.index());
  TORCH_CHECK(generator.device() == device, "the generator is one of ", generator.device(), ", the tensor of ", device);
  return generator.get<DeviceGenerator>()->host();
}

}  // namespace zero::test::accelerator
