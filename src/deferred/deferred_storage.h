// What the storage of a deferred tensor has in the place of memory: it is the context of its data pointer, so that it
// is found in the tensor and ends with the storage.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "backwards/unwatched.h"
#include "deferred/deferred_values.h"

namespace zero {

inline constexpr c10::DispatchKey kDeferredKey = kBelowKey;

struct DeferredStorage {
  // Null where a tensor is another's.
  static DeferredStorage* of(const c10::TensorImpl* tensor) {
    if (!tensor->has_storage()) return nullptr;
    const at::DataPtr& pointer = tensor->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    return pointer.get_deleter() == &remove ? static_cast<DeferredStorage*>(pointer.get_context()) : nullptr;
  }
  // A tensor laid out like `like`, which has no memory either, with these values; `made`: by what, in words.
  static at::Tensor tensor(const at::Tensor& like, at::Device device, DeferredPointer values, const std::string& made);
  static std::int64_t bytes_for(const at::Tensor& like);

  // Whoever takes the storage's pointer is told so.
  void say(c10::StorageImpl& storage) const;

  DeferredPointer values;
  std::string what;        // they are of, in words
  bool of_module = false;  // a parameter or buffer, or a copy of one

 private:
  static void remove(void* self) { delete static_cast<DeferredStorage*>(self); }
};

}  // namespace zero
