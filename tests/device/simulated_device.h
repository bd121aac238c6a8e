// The engine's door to the simulated accelerator: the host's kernels on what device pointers point to, each enqueued on
// the current stream.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <vector>

#include "device/accelerator.h"
#include "device/torch/torch_device.h"

namespace zero::test {

class SimulatedDevice final : public TorchDevice {
 public:
  using TorchDevice::TorchDevice;

  std::unique_ptr<SideStream> side_stream() override;
  std::unique_ptr<SideStream> copy_stream() override;
  void follow(Pending operation) override;
  void fold(const Fold& how, std::span<void* const> levels, Dtype kept, const void* gradient, Dtype dtype,
            std::int64_t count) override;
  void add_squares(const void* values, Dtype dtype, std::int64_t count, std::int64_t* limbs) override;
  void update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range) override;
  void read_weights(const UpdateRange& range, void* weights) override;
  void update_moments(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range,
                      const void* weights, void* input, Dtype input_dtype) override;
  void apply_step(double kept, double size, const void* step, const UpdateFactors& factors,
                  const UpdateRange& range) override;
  void encode(const void* values, Dtype dtype, std::uint8_t* out, std::int64_t count) override;
  void decode(const std::uint8_t* in, void* values, Dtype dtype, std::int64_t count) override;
  void find_largest(const void* values, Dtype dtype, std::int64_t count, float* largest, float* noted) override;
  void to_float8(Float8Format format, const void* values, Dtype dtype, std::int64_t count, float given,
                 Float8Scale* scale, std::uint8_t* codes) override;
  void from_float8(Float8Format format, const std::uint8_t* codes, void* values, std::int64_t count) override;
  bool multiplies_float8() const override;
  void keep_rest(const void* values, void* rest, std::int64_t count) override;
  void drop_misfits(const void* written, void* rest, std::int64_t count) override;
  void adopt_written(const void* written, Dtype stored, void* main, std::int64_t count) override;

 private:
  c10::Stream stream() const;
  void launch(const std::vector<accelerator::Access>& ranges, std::function<void()> kernel) const;
};

// Engines train on the accelerator from now on.
void install_simulated_device();
// Whether matrices in FP8 are multiplied there by LibTorch's operator for it; at first they are not.
void multiply_float8(bool there);

}  // namespace zero::test
