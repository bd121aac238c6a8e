// The host as a device: its kernels on the calling thread, at once.
#pragma once

#include "device/torch/torch_device.h"

namespace zero {

class HostDevice final : public TorchDevice {
 public:
  HostDevice() : TorchDevice(c10::kCPU) {}

  std::function<void()> on_this_stream(std::function<void()> task) override { return task; }
  std::unique_ptr<Block::Place> take(std::size_t bytes, Use use) override;
  void to_host(void* host, const void* from, std::int64_t bytes) override;
  void from_host(void* to, const void* host, std::int64_t bytes) override;
  void copy(void* to, const void* from, std::int64_t bytes) override;
  void zero(void* to, std::int64_t bytes) override;
  void fold(const Fold& how, std::span<void* const> levels, Dtype kept, const void* gradient, Dtype dtype,
            std::int64_t count) override;
  void add_squares(const void* values, Dtype dtype, std::int64_t count, ExactSum& sum,
                   std::int64_t& nonfinite) override;
  void update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range) override;
  void keep_rest(const void* values, void* rest, std::int64_t count) override;
  void drop_misfits(const void* written, void* rest, std::int64_t count) override;
  void adopt_written(const void* written, Dtype stored, void* main, std::int64_t count) override;
};

}  // namespace zero
