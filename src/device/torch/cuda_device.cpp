#include "device/torch/cuda_device.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <array>

#include "device/cuda/cuda_kernels.h"
#include "device/torch/torch_device.h"

namespace zero {
namespace {

class CudaDevice final : public TorchDevice {
 public:
  explicit CudaDevice(c10::Device where) : TorchDevice(where) {}

  void fold(const Fold& how, std::span<void* const> levels, Dtype kept, const void* gradient, Dtype dtype,
            std::int64_t count) override {
    launch([&](const CudaKernels& kernels) { return kernels.fold(how, levels, kept, gradient, dtype, count); });
  }

  void add_squares(const void* values, Dtype dtype, std::int64_t count, ExactSum& sum,
                   std::int64_t& nonfinite) override {
    std::array<std::int64_t, kSquareLimbs> limbs{};
    const auto place = take(sizeof(limbs), Use::passing);
    zero(place->data(), sizeof(limbs));
    launch([&](const CudaKernels& kernels) {
      return kernels.add_squares(values, dtype, count, static_cast<std::int64_t*>(place->data()));
    });
    to_host(limbs.data(), place->data(), sizeof(limbs));
    sum.add(std::span<const std::int64_t>(limbs).first(ExactSum::kLimbs));
    nonfinite += limbs.back();
  }

  void update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range) override {
    launch([&](const CudaKernels& kernels) { return kernels.update(optimizer, factors, range); });
  }

  void keep_rest(const void* values, void* rest, std::int64_t count) override {
    launch([&](const CudaKernels& kernels) { return kernels.keep_rest(values, rest, count); });
  }

  void drop_misfits(const void* written, void* rest, std::int64_t count) override {
    launch([&](const CudaKernels& kernels) { return kernels.drop_misfits(written, rest, count); });
  }

  void adopt_written(const void* written, Dtype stored, void* main, std::int64_t count) override {
    launch([&](const CudaKernels& kernels) { return kernels.adopt_written(written, stored, main, count); });
  }

 private:
  template <class Use>
  void launch(const Use& use) const {
    const c10::cuda::CUDAGuard guard(where());
    const CudaKernels kernels(c10::cuda::getCurrentCUDAStream(where().index()).stream());
    C10_CUDA_CHECK(static_cast<cudaError_t>(use(kernels)));
  }
};

}  // namespace

MakeDevice cuda_devices() {
  return [](c10::Device where) { return std::make_unique<CudaDevice>(where); };
}

}  // namespace zero
