#include "device/torch/host_device.h"

#include <algorithm>
#include <cstring>

#include "base/exact_sum.h"
#include "base/float8_arrays.h"
#include "base/float8_blocks.h"
#include "device/written_weights.h"
#include "memory/store.h"
#include "memory/torch/arena_allocator.h"

namespace zero {
namespace {

// What has returned is done.
class AtOnce final : public SideStream::Work {
 public:
  void run(const std::function<void()>& task) override { task(); }
  void join() override {}
  void finish() override {}
  bool finished() override { return true; }
};

class NoStream final : public SideStream {
 public:
  std::shared_ptr<Work> work() override { return work_; }

 private:
  std::shared_ptr<Work> work_ = std::make_shared<AtOnce>();
};

}  // namespace

std::unique_ptr<SideStream> HostDevice::side_stream() {
  return std::make_unique<NoStream>();
}

void HostDevice::trim() {
  trim_arena();
}

std::unique_ptr<Block::Place> HostDevice::take(std::size_t bytes, Use use) {
  return in_memory(bytes == 0 ? nullptr : use == Use::lasting ? lasting_memory(bytes) : host_memory(bytes));
}

std::unique_ptr<Block::Place> HostDevice::lent(void* memory) {
  return in_memory({std::shared_ptr<void>(), memory});
}

Pending HostDevice::bring(void* host, const void* from, std::int64_t bytes) {
  to_host(host, from, bytes);
  return {};
}

Pending HostDevice::send(void* to, const void* host, std::int64_t bytes) {
  from_host(to, host, bytes);
  return {};
}

void HostDevice::to_host(void* host, const void* from, std::int64_t bytes) {
  std::memcpy(host, from, static_cast<std::size_t>(bytes));
}

void HostDevice::from_host(void* to, const void* host, std::int64_t bytes) {
  std::memcpy(to, host, static_cast<std::size_t>(bytes));
}

void HostDevice::copy(void* to, const void* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void HostDevice::zero(void* to, std::int64_t bytes) {
  std::memset(to, 0, static_cast<std::size_t>(bytes));
}

void HostDevice::fold(const Fold& how, std::span<void* const> levels, Dtype kept, const void* gradient, Dtype dtype,
                      std::int64_t count) {
  zero::fold(how, levels, kept, gradient, dtype, count);
}

void HostDevice::add_squares(const void* values, Dtype dtype, std::int64_t count, std::int64_t* limbs) {
  ExactSum sum;
  sum.add(std::span<const std::int64_t>(limbs, ExactSum::kLimbs));
  sum_of_squares(values, dtype, count, sum, limbs[ExactSum::kLimbs]);
  std::ranges::copy(sum.limbs(), limbs);
}

void HostDevice::update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range) {
  zero::update(optimizer, factors, range);
}

void HostDevice::read_weights(const UpdateRange& range, void* weights) {
  zero::read_weights(range, weights);
}

void HostDevice::update_moments(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range,
                                const void* weights, void* input, Dtype input_dtype) {
  zero::update_moments(optimizer, factors, range, weights, input, input_dtype);
}

void HostDevice::apply_step(double kept, double size, const void* step, const UpdateFactors& factors,
                            const UpdateRange& range) {
  zero::apply_step(kept, size, step, factors, range);
}

void HostDevice::encode(const void* values, Dtype dtype, std::uint8_t* out, std::int64_t count) {
  encode_blocks(values, dtype, out, count);
}

void HostDevice::decode(const std::uint8_t* in, void* values, Dtype dtype, std::int64_t count) {
  decode_blocks(in, values, dtype, count);
}

void HostDevice::find_largest(const void* values, Dtype dtype, std::int64_t count, float* largest, float* noted) {
  zero::find_largest(values, dtype, count, largest, noted);
}

void HostDevice::to_float8(Float8Format format, const void* values, Dtype dtype, std::int64_t count, float given,
                           Float8Scale* scale, std::uint8_t* codes) {
  zero::to_float8(format, values, dtype, count, given, scale, codes);
}

void HostDevice::from_float8(Float8Format format, const std::uint8_t* codes, void* values, std::int64_t count) {
  zero::from_float8(format, codes, static_cast<Bf16*>(values), count);
}

void HostDevice::keep_rest(const void* values, void* rest, std::int64_t count) {
  zero::keep_rest(static_cast<const float*>(values), static_cast<Bf16*>(rest), count);
}

void HostDevice::drop_misfits(const void* written, void* rest, std::int64_t count) {
  zero::drop_misfits(static_cast<const Bf16*>(written), static_cast<Bf16*>(rest), count);
}

void HostDevice::adopt_written(const void* written, Dtype stored, void* main, std::int64_t count) {
  zero::adopt_written(written, stored, static_cast<float*>(main), count);
}

}  // namespace zero
