// The engine's door to the simulated accelerator: the host's kernels on what device pointers point to, each enqueued on
// the current stream.
#pragma once

#include "device/torch/torch_device.h"

namespace zero::test {

class SimulatedDevice final : public TorchDevice {
 public:
  using TorchDevice::TorchDevice;

  std::unique_ptr<SideStream> side_stream() override;
  std::unique_ptr<SideStream> copy_stream() override;
  void follow(Pending operation) override;
  bool multiplies_float8() const override;

 private:
  void launch(const OwnKernel& kernel) override;
};

// Engines train on the accelerator from now on.
void install_simulated_device();
// Whether matrices in FP8 are multiplied there by LibTorch's operator for it; at first they are not.
void multiply_float8(bool there);

}  // namespace zero::test
