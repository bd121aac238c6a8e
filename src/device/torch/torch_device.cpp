#include "device/torch/torch_device.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>
#include <variant>

#include "device/torch/device_arena.h"
#include "device/torch/dtypes.h"
#include "memory/store.h"

namespace zero {
namespace {

class DevicePlace final : public Block::Place {
 public:
  DevicePlace(Device& device, std::shared_ptr<void> memory) : device_(device), memory_(std::move(memory)) {}

  void* data() override { return memory_.get(); }
  int device() const override { return device_.index(); }
  Pending read(std::int64_t at, View to) override {
    return device_.bring(to.data, static_cast<const char*>(memory_.get()) + at, to.bytes());
  }
  Pending write(std::int64_t at, ConstView from) override {
    return device_.send(static_cast<char*>(memory_.get()) + at, from.data, from.bytes());
  }

 private:
  Device& device_;
  std::shared_ptr<void> memory_;
};

// Of the device's allocator, which is told of the stream on which it is given back.
std::shared_ptr<void> told_of_streams(c10::DataPtr memory) {
  const auto owned = std::make_shared<c10::DataPtr>(std::move(memory));
  return {owned->get(), [owned, taken_on = current_stream(owned->device())](void*) {
            const c10::Stream now = current_stream(owned->device());
            if (now != taken_on) c10::impl::VirtualGuardImpl(now.device_type()).recordDataPtrOnStream(*owned, now);
          }};
}

class TorchArena final : public Device::Arena {
 public:
  TorchArena(Device& device, c10::DataPtr memory, std::size_t bytes)
      : device_(device), arena_(std::make_shared<DeviceArena>(std::move(memory), bytes)) {}

  std::unique_ptr<Block::Place> take(std::size_t bytes) override {
    auto memory = arena_->take(bytes);
    return memory == nullptr ? nullptr : std::make_unique<DevicePlace>(device_, std::move(memory));
  }

 private:
  Device& device_;
  std::shared_ptr<DeviceArena> arena_;
};

class TorchWork final : public SideStream::Work {
 public:
  explicit TorchWork(c10::Stream stream) : stream_(stream), asked_(stream.device_type()), done_(stream.device_type()) {
    asked_.record(current_stream(stream.device()));
  }

  void run(const std::function<void()>& task) override {
    const c10::StreamGuard guard(stream_);
    asked_.block(stream_);
    try {
      task();
    } catch (...) {
      done_.record(stream_);
      throw;
    }
    done_.record(stream_);
  }
  void join() override { done_.block(current_stream(stream_.device())); }
  void finish() override { done_.synchronize(); }
  bool finished() override { return done_.query(); }

 private:
  c10::Stream stream_;
  c10::Event asked_, done_;
};

class TorchStream final : public SideStream {
 public:
  explicit TorchStream(c10::Stream stream) : stream_(stream) {}
  std::shared_ptr<Work> work() override { return std::make_shared<TorchWork>(stream_); }

 private:
  c10::Stream stream_;
};

class Copied final : public Pending::State {
 public:
  explicit Copied(std::shared_ptr<SideStream::Work> work) : work_(std::move(work)) {}

  void wait() override { work_->finish(); }
  void wait_in(const Stream&) override { work_->join(); }
  bool done() override { return work_->finished(); }

 private:
  std::shared_ptr<SideStream::Work> work_;
};

// The kernels that LibTorch's operators compute.
struct Operators {
  Device& device;
  c10::Device where;

  at::Tensor array(const void* data, Dtype dtype, std::int64_t count) const {
    return tensor_at(where, data, scalar_type(dtype), count);
  }
  void operator()(const Fill& k) const { array(k.values, k.dtype, k.count).fill_(k.value); }
  void operator()(const Convert& k) const {
    if (k.from_dtype == k.to_dtype) return device.copy(k.to, k.from, k.count * size_of(k.to_dtype));
    array(k.to, k.to_dtype, k.count).copy_(array(k.from, k.from_dtype, k.count));
  }
  void operator()(const Add& k) const { array(k.sum, k.sum_dtype, k.count).add_(array(k.addend, k.dtype, k.count)); }
  void operator()(const Multiply& k) const { array(k.values, k.dtype, k.count).mul_(k.factor); }
};

at::Tensor host_bytes(const void* data, std::int64_t bytes) {
  return at::from_blob(const_cast<void*>(data), {bytes}, at::TensorOptions().dtype(at::kByte));
}

}  // namespace

at::Tensor tensor_at(c10::Device where, const void* data, at::ScalarType dtype, std::int64_t count) {
  const at::TensorOptions options = at::TensorOptions().dtype(dtype).device(where);
  return at::for_blob(const_cast<void*>(data), {count}).options(options).target_device(where).make_tensor();
}

TorchDevice::TorchDevice(c10::Device where) : where_(where) {
  at::globalContext().lazyInitDevice(where.type());
}

at::Tensor TorchDevice::bytes_at(const void* data, std::int64_t count) const {
  return tensor_at(where_, data, at::kByte, count);
}

std::unique_ptr<SideStream> TorchDevice::side_stream() {
  return std::make_unique<TorchStream>(
      c10::impl::VirtualGuardImpl(where_.type()).getStreamFromGlobalPool(where_, /*isHighPriority=*/true));
}

std::unique_ptr<SideStream> TorchDevice::copy_stream() {
  return std::make_unique<TorchStream>(c10::impl::VirtualGuardImpl(where_.type()).getNewStream(where_));
}

Device::Memory TorchDevice::memory() const {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(where_.type());
  const auto stats = allocator->getDeviceStats(where_.index());
  const auto free = static_cast<std::int64_t>(allocator->getMemoryInfo(where_.index()).first);
  return {free + stats.reserved_bytes[kAll].current, stats.allocated_bytes[kAll].current};
}

c10::DataPtr TorchDevice::allocate(std::size_t bytes) const {
  const c10::DeviceGuard guard(where_);
  return bytes == 0 ? c10::DataPtr(nullptr, where_) : c10::GetAllocator(where_.type())->allocate(bytes);
}

void TorchDevice::trim() {
  c10::getDeviceAllocator(where_.type())->emptyCache();
}

std::unique_ptr<Block::Place> TorchDevice::take(std::size_t bytes, Use) {
  return std::make_unique<DevicePlace>(*this, told_of_streams(allocate(bytes)));
}

std::unique_ptr<Device::Arena> TorchDevice::arena(std::size_t bytes) {
  return std::make_unique<TorchArena>(*this, allocate(bytes), bytes);
}

std::unique_ptr<Block::Place> TorchDevice::take_of_host(std::size_t bytes) {
  const auto memory =
      std::make_shared<c10::DataPtr>(at::globalContext().getPinnedMemoryAllocator(where_.type())->allocate(bytes));
  return in_memory(std::shared_ptr<void>(memory, memory->get()));
}

std::unique_ptr<Block::Place> TorchDevice::borrowed(void* memory) {
  return std::make_unique<DevicePlace>(*this, std::shared_ptr<void>(std::shared_ptr<void>(), memory));
}

std::shared_ptr<SideStream::Work> TorchDevice::copied(Direction direction, const std::function<void()>& copy) {
  std::shared_ptr<SideStream::Work> work;
  {
    const std::lock_guard lock(copying_);
    std::unique_ptr<SideStream>& stream = copies_[static_cast<std::size_t>(direction)];
    if (!stream) stream = copy_stream();
    work = stream->work();
  }
  work->run(copy);
  return work;
}

Pending TorchDevice::bring(void* host, const void* from, std::int64_t bytes) {
  if (bytes == 0) return {};
  return Pending(std::make_shared<Copied>(
      copied(Direction::down, [&] { host_bytes(host, bytes).copy_(bytes_at(from, bytes), /*non_blocking=*/true); })));
}

Pending TorchDevice::send(void* to, const void* host, std::int64_t bytes) {
  if (bytes == 0) return {};
  return Pending(std::make_shared<Copied>(
      copied(Direction::up, [&] { bytes_at(to, bytes).copy_(host_bytes(host, bytes), /*non_blocking=*/true); })));
}

void TorchDevice::follow_sends() {
  {
    const std::lock_guard lock(copying_);
    if (!copies_[static_cast<std::size_t>(Direction::up)]) return;
  }
  copied(Direction::up, [] {})->join();
}

void TorchDevice::follow(Pending operation) {
  const c10::Stream now = current_stream(where_);
  operation.wait(Stream{now.id(), now.device_index(), static_cast<int>(now.device_type())});
}

void TorchDevice::to_host(void* host, const void* from, std::int64_t bytes) {
  if (bytes > 0) host_bytes(host, bytes).copy_(bytes_at(from, bytes));
}

void TorchDevice::from_host(void* to, const void* host, std::int64_t bytes) {
  if (bytes > 0) bytes_at(to, bytes).copy_(host_bytes(host, bytes));
}

void TorchDevice::copy(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) bytes_at(to, bytes).copy_(bytes_at(from, bytes));
}

void TorchDevice::zero(void* to, std::int64_t bytes) {
  if (bytes > 0) bytes_at(to, bytes).zero_();
}

void TorchDevice::run(const Kernel& kernel) {
  if (const auto* own = std::get_if<OwnKernel>(&kernel)) return launch(*own);
  std::visit(
      [this](const auto& each) {
        if (each.count > 0) Operators{*this, where_}(each);
      },
      std::get<ArrayKernel>(kernel));
}

}  // namespace zero
