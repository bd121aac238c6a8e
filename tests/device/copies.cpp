// Copies between the host and the devices.
#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>

#include "device/runtime.h"

namespace zero::test::accelerator {
namespace {

bool on_device(const at::Tensor& tensor) {
  return tensor.device().type() == kType;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.is_contiguous() && b.is_contiguous() && a.is_conj() == b.is_conj() &&
         a.is_neg() == b.is_neg();
}

// Both of the host.
void copy_now(const at::Tensor& source, const at::Tensor& target) {
  if (source.numel() == 0) return;
  if (same_bytes(source, target)) {
    std::memmove(target.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
    return;
  }
  const PlainOperators plain;
  target.copy_(source);
}

void copy_to_device(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  if (non_blocking && is_pinned(source.storage().data())) {
    write_late(source, target);
    return;
  }
  const PlainOperators plain;
  write_late(source.clone(), target);
}

void copy_to_host(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const c10::Stream stream = current_stream(source.device().index());
  enqueue(stream, {range_of(source, false)}, [from = in_shadow(source), target] { copy_now(from, target); });
  if (!non_blocking || !is_pinned(target.storage().data())) synchronize(stream);
}

// On the source's stream, which the target's stream waits for, as it waits for that.
void copy_between(const at::Tensor& source, const at::Tensor& target) {
  const c10::Stream stream = current_stream(source.device().index());
  const c10::Stream other = current_stream(target.device().index());
  c10::Event ready(kType), copied(kType);
  ready.record(other);
  ready.block(stream);
  enqueue(stream, {range_of(source, false), range_of(target, true)},
          [from = in_shadow(source), to = in_shadow(target)] { copy_now(from, to); });
  copied.record(stream);
  copied.block(other);
}

}  // namespace

PlainOperators::PlainOperators()
    : guard_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
             c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset) {}

at::Tensor same_geometry(const at::Tensor& tensor, c10::Storage storage, c10::DispatchKey backend) {
  at::Tensor made =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(backend), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  made._set_conj(tensor.is_conj());
  made._set_neg(tensor.is_neg());
  return made;
}

at::Tensor in_shadow(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  return same_geometry(
      tensor,
      c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), {shadow(storage.data()), c10::DeviceType::CPU}),
      c10::DispatchKey::CPU);
}

Access range_of(const at::Tensor& tensor, bool writes) {
  const std::size_t bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
  const auto* begin = static_cast<const char*>(tensor.storage().data());
  return {begin + static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize(), bytes, writes};
}

void write_late(const at::Tensor& host, const at::Tensor& target) {
  enqueue(current_stream(target.device().index()), {range_of(target, true)},
          [host, to = in_shadow(target)] { copy_now(host, to); });
}

void copy_late(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const Lock lock;
  if (!on_device(source))
    copy_to_device(source, target, non_blocking);
  else if (!on_device(target))
    copy_to_host(source, target, non_blocking);
  else
    copy_between(source, target);
}

void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  const Lock lock;
  TORCH_CHECK(storage.resizable(), "the storage is not resizable");
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr fresh = c10::GetAllocator(kType)->allocate(bytes);
  const std::size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0)
    enqueue(current_stream(storage.device().index()), {{storage.data(), kept}, {fresh.get(), kept, true}},
            [kept, from = shadow(storage.data()), to = shadow(fresh.get())] { std::memcpy(to, from, kept); });
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(bytes);
}

}  // namespace zero::test::accelerator
