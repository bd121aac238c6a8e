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

  void fold(const Fold& how, std::span<void* const> levels, Dtype kept, const void* gradient, Dtype dtype,
            std::int64_t count) override {
    launch([&](const CudaKernels& kernels) { return kernels.fold(how, levels, kept, gradient, dtype, count); });
  }

  void add_squares(const void* values, Dtype dtype, std::int64_t count, std::int64_t* limbs) override {
    launch([&](const CudaKernels& kernels) { return kernels.add_squares(values, dtype, count, limbs); });
  }

  void update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range) override {
    launch([&](const CudaKernels& kernels) { return kernels.update(optimizer, factors, range); });
  }

  void read_weights(const UpdateRange& range, void* weights) override {
    launch([&](const CudaKernels& kernels) { return kernels.read_weights(range, weights); });
  }

  void update_moments(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range,
                      const void* weights, void* input, Dtype input_dtype) override {
    launch([&](const CudaKernels& kernels) {
      return kernels.update_moments(optimizer, factors, range, weights, input, input_dtype);
    });
  }

  void apply_step(double kept, double size, const void* step, const UpdateFactors& factors,
                  const UpdateRange& range) override {
    launch([&](const CudaKernels& kernels) { return kernels.apply_step(kept, size, step, factors, range); });
  }

  void encode(const void* values, Dtype dtype, std::uint8_t* out, std::int64_t count) override {
    launch([&](const CudaKernels& kernels) { return kernels.encode(values, dtype, out, count); });
  }

  void decode(const std::uint8_t* in, void* values, Dtype dtype, std::int64_t count) override {
    launch([&](const CudaKernels& kernels) { return kernels.decode(in, values, dtype, count); });
  }

  void find_largest(const void* values, Dtype dtype, std::int64_t count, float* largest, float* noted) override {
    launch([&](const CudaKernels& kernels) { return kernels.find_largest(values, dtype, count, largest, noted); });
  }

  void to_float8(Float8Format format, const void* values, Dtype dtype, std::int64_t count, float given,
                 Float8Scale* scale, std::uint8_t* codes) override {
    launch([&](const CudaKernels& kernels) {
      return kernels.to_float8(format, values, dtype, count, given, scale, codes);
    });
  }

  void from_float8(Float8Format format, const std::uint8_t* codes, void* values, std::int64_t count) override {
    launch([&](const CudaKernels& kernels) { return kernels.from_float8(format, codes, values, count); });
  }

  bool multiplies_float8() const override { return multiplies_float8_; }

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

  bool multiplies_float8_;
};

}  // namespace

MakeDevice cuda_devices() {
  return [](c10::Device where) { return std::make_unique<CudaDevice>(where); };
}

}  // namespace zero
