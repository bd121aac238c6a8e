#include "device/torch/host_device.h"

#include <cstring>

#include "device/weights.h"
#include "memory/store.h"
#include "memory/torch/arena_allocator.h"

namespace zero {
std::unique_ptr<Block::Place> HostDevice::take(std::size_t bytes, Use use) {
  return in_memory(bytes == 0 ? nullptr : use == Use::lasting ? lasting_memory(bytes) : host_memory(bytes));
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

void HostDevice::add_squares(const void* values, Dtype dtype, std::int64_t count, ExactSum& sum,
                             std::int64_t& nonfinite) {
  sum_of_squares(values, dtype, count, sum, nonfinite);
}

void HostDevice::update(const Optimizer& optimizer, const UpdateFactors& factors, const UpdateRange& range) {
  zero::update(optimizer, factors, range);
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
