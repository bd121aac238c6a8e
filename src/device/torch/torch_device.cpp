#include "device/torch/torch_device.h"

#include <ATen/Functions.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "device/torch/dtypes.h"

namespace zero {
namespace {

class DevicePlace final : public Block::Place {
 public:
  DevicePlace(Device& device, c10::DataPtr memory) : device_(device), memory_(std::move(memory)) {}

  void* data() override { return memory_.get(); }
  Pending read(std::int64_t at, View to) override {
    device_.to_host(to.data, static_cast<const char*>(memory_.get()) + at, to.bytes());
    return {};
  }
  Pending write(std::int64_t at, ConstView from) override {
    device_.from_host(static_cast<char*>(memory_.get()) + at, from.data, from.bytes());
    return {};
  }

 private:
  Device& device_;
  c10::DataPtr memory_;
};

at::Tensor host_bytes(const void* data, std::int64_t bytes) {
  return at::from_blob(const_cast<void*>(data), {bytes}, at::TensorOptions().dtype(at::kByte));
}

}  // namespace

at::Tensor TorchDevice::tensor_at(const void* data, Dtype dtype, std::int64_t count) const {
  const at::TensorOptions options = at::TensorOptions().dtype(scalar_type(dtype)).device(where_);
  return at::for_blob(const_cast<void*>(data), {count}).options(options).target_device(where_).make_tensor();
}

std::function<void()> TorchDevice::on_this_stream(std::function<void()> task) {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(where_.type()).getStream(where_);
  return [stream, task = std::move(task)] {
    const c10::StreamGuard guard(stream);
    task();
  };
}

std::unique_ptr<Block::Place> TorchDevice::take(std::size_t bytes, Use) {
  const c10::DeviceGuard guard(where_);
  return std::make_unique<DevicePlace>(
      *this, bytes == 0 ? c10::DataPtr(nullptr, where_) : c10::GetAllocator(where_.type())->allocate(bytes));
}

void TorchDevice::to_host(void* host, const void* from, std::int64_t bytes) {
  if (bytes > 0) host_bytes(host, bytes).copy_(tensor_at(from, Dtype::u8, bytes));
}

void TorchDevice::from_host(void* to, const void* host, std::int64_t bytes) {
  if (bytes > 0) tensor_at(to, Dtype::u8, bytes).copy_(host_bytes(host, bytes));
}

void TorchDevice::copy(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) tensor_at(to, Dtype::u8, bytes).copy_(tensor_at(from, Dtype::u8, bytes));
}

void TorchDevice::zero(void* to, std::int64_t bytes) {
  if (bytes > 0) tensor_at(to, Dtype::u8, bytes).zero_();
}

void TorchDevice::fill(void* to, Dtype dtype, std::int64_t count, double value) {
  if (count > 0) tensor_at(to, dtype, count).fill_(value);
}

void TorchDevice::convert(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, std::int64_t count) {
  if (from_dtype == to_dtype) return copy(to, from, count * size_of(to_dtype));
  if (count > 0) tensor_at(to, to_dtype, count).copy_(tensor_at(from, from_dtype, count));
}

void TorchDevice::add(void* sum, Dtype sum_dtype, const void* addend, Dtype dtype, std::int64_t count) {
  if (count > 0) tensor_at(sum, sum_dtype, count).add_(tensor_at(addend, dtype, count));
}

void TorchDevice::multiply(void* values, Dtype dtype, std::int64_t count, double factor) {
  if (count > 0) tensor_at(values, dtype, count).mul_(factor);
}

}  // namespace zero
