// What the parts of the simulated accelerator share.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <mutex>

#include "device/accelerator.h"
#include "device/memory.h"
#include "device/streams.h"

namespace zero::test::accelerator {

struct Runtime {
  std::recursive_mutex mutex;
  std::array<Memory, kDevices> memory;
  Streams streams;
  bool race_faults = false;
};
// Never destroyed, since tensors may outlive everything.
Runtime& runtime();

class Lock {
 public:
  Lock() : lock_(runtime().mutex) {}

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

constexpr Key kStreamsOfADevice = 1 << 16;
Key key_of(c10::Stream stream);
inline c10::DeviceIndex device_of(Key stream) {
  return static_cast<c10::DeviceIndex>(stream / kStreamsOfADevice);
}

// Of this thread.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
c10::Stream current_stream(c10::DeviceIndex device);
void set_current_stream(c10::Stream stream);
void forget_currents();

void* allocate(c10::DeviceIndex device, std::size_t bytes);
void free_block(void* address) noexcept;
void record_stream(const void* address, c10::Stream stream);
// Of the host, and of operators that the host carries out for the device, which count as the device's.
void synchronize(c10::Stream stream);
void finish(c10::Stream stream);
// As launch(), and memory of any device.
void enqueue(c10::Stream stream, const std::vector<Access>& ranges, std::function<void()> task);
// That a kernel of the stream uses the ranges at once, all that is enqueued there being done.
void touch(c10::Stream stream, const std::vector<Access>& ranges);

c10::Allocator* pinned_allocator();
bool is_pinned(const void* address);
bool of_device(const void* address, c10::DeviceIndex device);

// The generator of the host that a device's, or if there is none its default one, draws from.
at::Generator host_generator(const std::optional<at::Generator>& given, c10::Device device);

// Operators in its scope run on the host's tensors as they are: no autograd, no autocast, nobody who watches.
class PlainOperators {
 public:
  PlainOperators();

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
};

// What the elements of a tensor of the device span.
Access range_of(const at::Tensor& tensor, bool writes);
// A tensor of that backend with the same elements of `storage`.
at::Tensor same_geometry(const at::Tensor& tensor, c10::Storage storage, c10::DispatchKey backend);
// The elements of a tensor of the device, for the code of tasks.
at::Tensor in_shadow(const at::Tensor& tensor);
// Between tensors of one shape, of which at least one is on a device. In stream order.
void copy_late(const at::Tensor& source, const at::Tensor& target, bool non_blocking);
// Of the host, which is not written to any more.
void write_late(const at::Tensor& host, const at::Tensor& target);
void resize_storage(const c10::Storage& storage, std::size_t bytes);

}  // namespace zero::test::accelerator
