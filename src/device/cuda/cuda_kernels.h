// The kernels of CUDA devices, queued on a stream of the current device. Without CUDA's headers, and without torch.
#pragma once

#include <cstdint>
#include <span>

#include "base/float8_scale.h"
#include "device/accumulate.h"
#include "device/update.h"

namespace zero {

// See device/device.h and device/grid_kernels.h. Each returns the cudaError_t of its launch.
class CudaKernels {
 public:
  // A cudaStream_t.
  explicit CudaKernels(void* stream) : stream_(stream) {}

  int fold(const Fold& how, std::span<void* const> levels, Dtype kept, const void* gradient, Dtype dtype,
           std::int64_t count) const;
  // Adds to kSquareLimbs numbers of the device's memory.
  int add_squares(const void* values, Dtype dtype, std::int64_t count, std::int64_t* limbs) const;
  int update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range) const;
  int read_weights(const UpdateRange& range, void* weights) const;
  int update_moments(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range,
                     const void* weights, void* input, Dtype input_dtype) const;
  int apply_step(double kept, double size, const void* step, const UpdateFactors& factors,
                 const UpdateRange& range) const;
  int encode(const void* values, Dtype dtype, std::uint8_t* out, std::int64_t count) const;
  int decode(const std::uint8_t* in, void* values, Dtype dtype, std::int64_t count) const;
  int find_largest(const void* values, Dtype dtype, std::int64_t count, float* largest, float* noted) const;
  int to_float8(Float8Format format, const void* values, Dtype dtype, std::int64_t count, float given,
                Float8Scale* scale, std::uint8_t* codes) const;
  int from_float8(Float8Format format, const std::uint8_t* codes, void* values, std::int64_t count) const;
  int keep_rest(const void* values, void* rest, std::int64_t count) const;
  int drop_misfits(const void* written, void* rest, std::int64_t count) const;
  int adopt_written(const void* written, Dtype stored, void* main, std::int64_t count) const;

 private:
  void* stream_;
};

// Whether the device has a unit that multiplies in FP8: from compute capability 8.9 on.
bool cuda_multiplies_float8(int device);

}  // namespace zero
