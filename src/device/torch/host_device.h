// The host as a device: its kernels on the calling thread, at once.
#pragma once

#include "device/torch/torch_device.h"

namespace zero {

class HostDevice final : public TorchDevice {
 public:
  HostDevice() : TorchDevice(c10::kCPU) {}

  std::unique_ptr<SideStream> side_stream() override;
  Memory memory() const override { return {}; }
  void trim() override;
  std::unique_ptr<Block::Place> take(std::size_t bytes, Use use) override;
  std::unique_ptr<Arena> arena(std::size_t) override { return nullptr; }
  std::unique_ptr<Block::Place> take_of_host(std::size_t bytes) override { return take(bytes, Use::passing); }
  std::unique_ptr<Block::Place> borrowed(void* memory) override;
  Pending bring(void* host, const void* from, std::int64_t bytes) override;
  Pending send(void* to, const void* host, std::int64_t bytes) override;
  void follow_sends() override {}
  void follow(Pending operation) override { operation.wait(); }
  void to_host(void* host, const void* from, std::int64_t bytes) override { copy(host, from, bytes); }
  void from_host(void* to, const void* host, std::int64_t bytes) override { copy(to, host, bytes); }
  void copy(void* to, const void* from, std::int64_t bytes) override;
  void zero(void* to, std::int64_t bytes) override;
  bool multiplies_float8() const override { return false; }

 private:
  void launch(const OwnKernel& kernel) override { run_on_host(kernel); }
};

}  // namespace zero
