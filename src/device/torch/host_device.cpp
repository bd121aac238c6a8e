#include "device/torch/host_device.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>

#include "base/elements.h"
#include "device/torch/dtypes.h"
#include "device/weights.h"
#include "memory/store.h"
#include "memory/torch/arena_allocator.h"

namespace zero {
namespace {

// Nobody writes what is there to be read.
at::Tensor tensor_at(const void* data, Dtype dtype, std::int64_t count) {
  return at::from_blob(const_cast<void*>(data), {count}, at::TensorOptions().dtype(scalar_type(dtype)));
}

}  // namespace

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

void HostDevice::fill(void* to, Dtype dtype, std::int64_t count, double value) {
  if (dtype == Dtype::f64) {
    std::fill_n(static_cast<double*>(to), count, value);
  } else {
    std::fill_n(static_cast<float*>(to), count, static_cast<float>(value));
  }
}

void HostDevice::convert(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, std::int64_t count) {
  if (from_dtype == to_dtype) return copy(to, from, count * size_of(to_dtype));
  tensor_at(to, to_dtype, count).copy_(tensor_at(from, from_dtype, count));
}

void HostDevice::add(void* sum, Dtype sum_dtype, const void* addend, Dtype dtype, std::int64_t count) {
  tensor_at(sum, sum_dtype, count).add_(tensor_at(addend, dtype, count));
}

void HostDevice::fold(const Fold& how, std::span<void* const> levels, Dtype kept, const void* gradient, Dtype dtype,
                      std::int64_t count) {
  zero::fold(how, levels, kept, gradient, dtype, count);
}

void HostDevice::multiply(void* values, Dtype dtype, std::int64_t count, double factor) {
  zero::multiply(values, dtype, count, factor);
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
