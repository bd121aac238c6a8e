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
  std::unique_ptr<Block::Place> lent(void* memory) override;
  Pending bring(void* host, const void* from, std::int64_t bytes) override;
  Pending send(void* to, const void* host, std::int64_t bytes) override;
  void follow_sends() override {}
  void follow(Pending operation) override { operation.wait(); }
  void to_host(void* host, const void* from, std::int64_t bytes) override;
  void from_host(void* to, const void* host, std::int64_t bytes) override;
  void copy(void* to, const void* from, std::int64_t bytes) override;
  void zero(void* to, std::int64_t bytes) override;
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
  bool multiplies_float8() const override { return false; }
  void keep_rest(const void* values, void* rest, std::int64_t count) override;
  void drop_misfits(const void* written, void* rest, std::int64_t count) override;
  void adopt_written(const void* written, Dtype stored, void* main, std::int64_t count) override;
};

}  // namespace zero
