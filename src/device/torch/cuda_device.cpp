#include "device/torch/cuda_device.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "device/cuda/cuda_kernels.h"
#include "device/torch/torch_device.h"

namespace zero {
namespace {

class CudaDevice final : public TorchDevice {
 public:
  explicit CudaDevice(c10::Device where)
      : TorchDevice(where), multiplies_float8_(cuda_multiplies_float8(where.index())) {}

  bool multiplies_float8() const override { return multiplies_float8_; }

 private:
  void launch(const OwnKernel& kernel) override {
    const c10::cuda::CUDAGuard guard(where());
    void* const stream = c10::cuda::getCurrentCUDAStream(where().index()).stream();
    C10_CUDA_CHECK(static_cast<cudaError_t>(cuda_run(stream, kernel)));
  }

  bool multiplies_float8_;
};

}  // namespace

MakeDevice cuda_devices() {
  return [](c10::Device where) { return std::make_unique<CudaDevice>(where); };
}

}  // namespace zero
