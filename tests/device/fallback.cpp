// Operators that the device has no kernel for: the CPU's kernels work on the shadows of its memory. They read at once,
// after what is enqueued on the current stream; what they write, the device sees when the stream gets there.
#include "device/fallback.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue_inl.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "device/convert_tensors.h"
#include "device/runtime.h"

namespace zero::test::accelerator {
namespace {

using torch::jit::Stack;

// These take indices and lengths of the host.
bool takes_host_tensors(const c10::OperatorHandle& op) {
  static const std::set<std::string> kNames = {
      "aten::index",     "aten::index_put",          "aten::index_put_",          "aten::_index_put_impl_",
      "aten::_ctc_loss", "aten::_ctc_loss_backward", "aten::_pad_packed_sequence"};
  return kNames.contains(op.schema().name());
}

// One operator on the host, with the device's tensors as if they were the host's.
class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, Stack& stack)
      : op_(op), stack_(stack), first_(stack.size() - op.schema().arguments().size()) {}

  void run(const c10::OperatorHandle& host_op);

 private:
  // What a kernel writes into, as it was before.
  struct Written {
    at::Tensor tensor, host;
    char* begin;
    std::vector<char> before;
  };

  void find_device();
  void see(const at::Tensor& tensor);
  void to_host(std::size_t index);
  at::Tensor host_of(const at::Tensor& tensor);
  void keep_before(const at::Tensor& tensor);
  at::Tensor device_of(const at::Tensor& host);
  c10::Storage storage_of(const c10::Storage& host);
  void take_geometry(const Written& written);
  void restore();
  void write_back();

  const c10::OperatorHandle& op_;
  Stack& stack_;
  std::size_t first_;
  std::optional<c10::Device> device_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> hosts_;    // by the device's tensor
  std::unordered_map<const c10::TensorImpl*, at::Tensor> devices_;  // by the host's
  std::unordered_map<const c10::StorageImpl*, c10::Storage> host_storages_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages_;  // of the device, by the host's
  std::vector<Written> written_;
  std::vector<Access> read_;
};

void HostCall::see(const at::Tensor& tensor) {
  if (tensor.device().type() == kType) {
    if (!device_) device_ = tensor.device();
    TORCH_CHECK(tensor.device() == *device_, op_.schema().name(),
                ": expected all tensors to be on the same device, but found ", *device_, " and ", tensor.device());
  } else {
    TORCH_CHECK(tensor.dim() == 0 || takes_host_tensors(op_), op_.schema().name(),
                ": expected all tensors to be on the same device, but found one on ", tensor.device());
  }
}

void HostCall::find_device() {
  for (std::size_t i = first_; i < stack_.size(); ++i)
    convert_tensors(stack_[i], [this](const at::Tensor& tensor) {
      see(tensor);
      return tensor;
    });
  for (std::size_t i = first_; i < stack_.size() && !device_; ++i)
    if (stack_[i].isDevice() && stack_[i].toDevice().type() == kType) device_ = stack_[i].toDevice();
  if (!device_ || !device_->has_index()) device_ = device(current_device());
}

at::Tensor HostCall::host_of(const at::Tensor& tensor) {
  if (tensor.device().type() != kType) return tensor;
  const auto known = hosts_.find(tensor.unsafeGetTensorImpl());
  if (known != hosts_.end()) return known->second;
  const c10::Storage& storage = tensor.storage();
  c10::Storage& host_storage = host_storages_[storage.unsafeGetStorageImpl()];
  if (!host_storage) {
    // Of the host's allocator, if an out= makes it larger.
    host_storage = c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(),
                                {shadow(storage.data()), c10::DeviceType::CPU}, c10::GetCPUAllocator(), true);
    storages_[host_storage.unsafeGetStorageImpl()] = storage;
  }
  at::Tensor host = same_geometry(tensor, host_storage, c10::DispatchKey::CPU);
  hosts_[tensor.unsafeGetTensorImpl()] = host;
  devices_[host.unsafeGetTensorImpl()] = tensor;
  return host;
}

void HostCall::keep_before(const at::Tensor& tensor) {
  if (tensor.device().type() != kType) return;
  const Access range = range_of(tensor, true);
  auto* begin = static_cast<char*>(shadow(range.pointer));
  written_.push_back({tensor, host_of(tensor), begin, std::vector<char>(begin, begin + range.bytes)});
}

void HostCall::to_host(std::size_t index) {
  c10::IValue& value = stack_[first_ + index];
  const c10::Argument& argument = op_.schema().arguments()[index];
  const bool writes = argument.alias_info() && argument.alias_info()->isWrite();
  if (value.isDevice()) {
    value = c10::Device(c10::DeviceType::CPU);
  } else if (argument.type()->isSubtypeOf(*c10::OptionalType::create(c10::GeneratorType::get()))) {
    const auto given = value.isNone() ? std::nullopt : std::optional(value.toGenerator());
    value = host_generator(given, *device_);
  } else {
    convert_tensors(value, [&](const at::Tensor& tensor) {
      if (writes)
        keep_before(tensor);
      else if (tensor.device().type() == kType)
        read_.push_back(range_of(tensor, false));
      return host_of(tensor);
    });
  }
}

c10::Storage HostCall::storage_of(const c10::Storage& host) {
  c10::Storage& storage = storages_[host.unsafeGetStorageImpl()];
  if (storage) return storage;
  const std::size_t bytes = host.nbytes();
  storage = c10::Storage(c10::Storage::use_byte_size_t(), bytes, c10::GetAllocator(kType)->allocate(bytes),
                         c10::GetAllocator(kType), true);
  enqueue(current_stream(device_->index()), {{storage.data(), bytes, true}},
          [to = shadow(storage.data()), host, bytes] { std::memcpy(to, host.data(), bytes); });
  return storage;
}

at::Tensor HostCall::device_of(const at::Tensor& host) {
  const auto known = devices_.find(host.unsafeGetTensorImpl());
  if (known != devices_.end()) return known->second;
  at::Tensor tensor = same_geometry(host, storage_of(host.storage()), c10::DispatchKey::PrivateUse1);
  devices_[host.unsafeGetTensorImpl()] = tensor;
  return tensor;
}

// An out= has the shape of its result.
void HostCall::take_geometry(const Written& written) {
  const std::size_t bytes = written.host.storage().nbytes();
  if (bytes > written.tensor.storage().nbytes()) resize_storage(written.tensor.storage(), bytes);
  written.tensor.unsafeGetTensorImpl()->set_sizes_and_strides(written.host.sizes(), written.host.strides(),
                                                              written.host.storage_offset());
}

void HostCall::restore() {
  for (const Written& each : written_)
    if (!each.before.empty()) std::memcpy(each.begin, each.before.data(), each.before.size());
}

void HostCall::write_back() {
  std::vector<at::Tensor> results;
  {
    const PlainOperators plain;
    for (const Written& each : written_) results.push_back(each.host.clone());
  }
  restore();
  for (std::size_t i = 0; i < written_.size(); ++i) {
    take_geometry(written_[i]);
    write_late(results[i], written_[i].tensor);
  }
}

void HostCall::run(const c10::OperatorHandle& host_op) {
  const Lock lock;
  find_device();
  const c10::DeviceGuard guard(*device_);
  const c10::Stream stream = current_stream(device_->index());
  finish(stream);
  for (std::size_t i = 0; i < op_.schema().arguments().size(); ++i) to_host(i);
  touch(stream, read_);
  try {
    const PlainOperators plain;
    host_op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
  } catch (...) {
    restore();
    throw;
  }
  write_back();
  for (std::size_t i = first_; i < stack_.size(); ++i)
    convert_tensors(stack_[i], [this](const at::Tensor& host) { return device_of(host); });
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  HostCall(op, *stack).run(op);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// LibTorch has implementations for any backend, too, which have other bits, as layer_norm's, or take two calls.
bool has_composite_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CPU)) {
    const auto op = dispatcher.findOp(name);
    if (op && name.name.starts_with("aten::") && has_composite_kernel(*op))
      library.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

}  // namespace

void call_on_host(const c10::OperatorHandle& op, const c10::OperatorHandle& host_op, Stack& stack) {
  HostCall(op, stack).run(host_op);
}

}  // namespace zero::test::accelerator
