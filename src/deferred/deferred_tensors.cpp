#include "deferred/deferred_tensors.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "backwards/sees_thread.h"
#include "base/text.h"
#include "deferred/deferred_storage.h"
#include "deferred/read_stretches.h"

namespace zero::deferred_tensors {
namespace {

thread_local std::vector<std::unique_ptr<SeesThread<kDeferredKey>>> seeing;  // of each scope

void give(const at::Tensor& tensor, const c10::Storage& memory) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(memory.unsafeGetStorageImpl()->set_data_ptr({nullptr, memory.device()}));
  storage.clear_data_ptr_access_error_msg_();
}

at::Tensor plain(const at::Tensor& tensor) {
  const c10::DispatchKeySet keys(c10::computeDispatchKey(tensor.scalar_type(), at::kStrided, tensor.device()));
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()), keys, tensor.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return result;
}

}  // namespace

Off::Off() : excluded_before_(c10::impl::tls_is_dispatch_key_excluded(kDeferredKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kDeferredKey, true);
}

Off::~Off() {
  c10::impl::tls_set_dispatch_key_excluded(kDeferredKey, excluded_before_);
}

void begin() {
  seeing.push_back(std::make_unique<SeesThread<kDeferredKey>>());
}

void end() {
  seeing.pop_back();
}

bool under_way() {
  return !seeing.empty();
}

bool deferred(const at::Tensor& tensor) {
  return DeferredStorage::of(tensor.unsafeGetTensorImpl()) != nullptr;
}

void settle(const at::Tensor& tensor) {
  const DeferredStorage* const storage = DeferredStorage::of(tensor.unsafeGetTensorImpl());
  if (storage != nullptr) give(tensor, storage->values->compute());
}

Settling::Settling(at::Tensor tensor, at::Tensor values) : tensor_(std::move(tensor)), values_(std::move(values)) {
  if (const DeferredStorage* const storage = DeferredStorage::of(tensor_.unsafeGetTensorImpl()))
    memory_ = whole(tensor_) ? values_.storage() : storage->values->compute();
  if (tensor_.key_set().has(kDeferredKey)) plain_ = plain(tensor_);
}

void Settling::commit() {
  const Off off;
  const at::NoGradGuard no_grad;
  const bool taken = deferred(tensor_) && whole(tensor_);
  if (deferred(tensor_)) give(tensor_, memory_);
  if (plain_.defined()) tensor_.set_data(plain_);
  if (!taken) tensor_.detach().copy_(values_);
}

void forget(const at::Tensor& tensor) {
  if (tensor.key_set().has(kDeferredKey)) at::Tensor(tensor).set_data(plain(tensor));
}

void compute_into(const at::Tensor& tensor, const at::Tensor& place) {
  const Off off;
  const at::NoGradGuard no_grad;
  const DeferredValues& values = *DeferredStorage::of(tensor.unsafeGetTensorImpl())->values;
  const bool straight = tensor.storage_offset() == 0 && values.bytes() == static_cast<std::int64_t>(tensor.nbytes()) &&
                        tensor.is_non_overlapping_and_dense() && tensor.scalar_type() == place.scalar_type() &&
                        tensor.strides() == place.strides() && tensor.device() == place.device();
  c10::Storage room;
  if (straight)
    room = c10::Storage(c10::Storage::use_byte_size_t(), place.nbytes(),
                        at::DataPtr(place.mutable_data_ptr(), place.device()), nullptr, false);
  const c10::Storage computed = values.compute(room);
  if (!straight || computed.data() != place.const_data_ptr()) place.copy_(tensor_in(computed, tensor));
}

bool whole(const at::Tensor& tensor) {
  return deferred(tensor) && tensor.is_contiguous() && tensor.storage().nbytes() == tensor.nbytes();
}

void set_values(const at::Tensor& tensor, DeferredValues::Source source) {
  DeferredStorage& storage = *DeferredStorage::of(tensor.unsafeGetTensorImpl());
  storage.values =
      std::make_shared<DeferredValues>(storage.values->bytes(), storage.values->device(), std::move(source));
}

const DeferredValues::Source* source_of(const at::Tensor& tensor) {
  return whole(tensor) ? DeferredStorage::of(tensor.unsafeGetTensorImpl())->values->source() : nullptr;
}

void read_into(const at::Tensor& tensor, std::int64_t begin, const at::Tensor& place) {
  const Off off;
  const at::NoGradGuard no_grad;
  const auto& read = source_of(tensor)->read;
  const auto size = static_cast<std::int64_t>(tensor.element_size());
  read_stretches(place, tensor.scalar_type(), [&](std::int64_t first, std::int64_t last, void* memory) {
    read((begin + first) * size, (begin + last) * size, memory);
  });
}

void name(const at::Tensor& tensor, const std::string& name) {
  if (DeferredStorage* const storage = DeferredStorage::of(tensor.unsafeGetTensorImpl())) {
    storage->what = in_quotes(name) + ", " + storage->what;
    storage->of_module = true;
    storage->say(*tensor.storage().unsafeGetStorageImpl());
  }
}

}  // namespace zero::deferred_tensors
