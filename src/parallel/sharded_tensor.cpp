#include "parallel/sharded_tensor.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text.h"
#include "device/torch/dtypes.h"
#include "parallel/copied_view.h"
#include "zero/tensor_rule.h"

namespace zero {
namespace {

// What the storage of a parameter that is cut has in the place of memory: the context of its data pointer.
struct CutStorage {
  static CutStorage* of(const c10::TensorImpl* tensor) {
    if (!tensor->has_storage()) return nullptr;
    const at::DataPtr& pointer = tensor->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    return pointer.get_deleter() == &remove ? static_cast<CutStorage*>(pointer.get_context()) : nullptr;
  }
  static void remove(void* self) { delete static_cast<CutStorage*>(self); }

  TensorPart part;
};

// As the whole would have them, were it laid out as the part is.
std::vector<std::int64_t> strides_of_whole(const at::Tensor& part, std::int64_t dim, int parts) {
  std::vector<std::int64_t> strides = part.strides().vec();
  const std::int64_t cut = part.stride(dim);
  for (std::int64_t i = 0; i < part.dim(); ++i) {
    std::int64_t& stride = strides[static_cast<std::size_t>(i)];
    if (stride > cut || (stride == cut && i < dim)) stride *= parts;
  }
  return strides;
}

// Of a view's first element, as far from that of what it is a view of.
std::int64_t offset_in_whole(const at::Tensor& part, std::int64_t dim, int parts) {
  const std::int64_t offset = part.storage_offset(), block = std::max<std::int64_t>(part.size(dim) * part.stride(dim), 1);
  return offset / block * block * parts + offset % block;
}

std::vector<std::int64_t> sizes_of_whole(const at::Tensor& part, std::int64_t dim, int parts) {
  std::vector<std::int64_t> sizes = part.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] *= parts;
  return sizes;
}

c10::DispatchKeySet keys_of(const at::Tensor& part) {
  return c10::DispatchKeySet({c10::computeDispatchKey(part.scalar_type(), at::kStrided, part.device()), kBelowKey});
}

c10::Storage storage_without_memory(std::size_t bytes, at::DataPtr pointer, const std::string& why) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(pointer), nullptr, /*resizable=*/false);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "zero: " + why + "; compute with it by operators, or take all of it by zero::whole()");
  return storage;
}

c10::Storage storage_on(const at::Device& device) {
  const auto make = [](const at::Device& where) {
    return storage_without_memory(0, at::DataPtr(nullptr, where),
                                  "a tensor is cut over the ranks of the tensor axis and has no memory of its own");
  };
  static const c10::Storage on_host = make(at::kCPU);
  return device.is_cpu() ? on_host : make(device);
}

}  // namespace

ShardedTensor::ShardedTensor(std::shared_ptr<TensorPart> part)
    : TensorImpl(storage_on(part->values.device()), keys_of(part->values), part->values.dtype()),
      part_(std::move(part)) {
  const at::Tensor& values = part_->values;
  if (!part_->placement.sharded()) {
    set_sizes_and_strides(values.sizes(), values.strides(), values.storage_offset());
    return;
  }
  const std::int64_t dim = part_->placement.dim;
  const int parts = part_->axis->size();
  set_sizes_and_strides(sizes_of_whole(values, dim, parts), strides_of_whole(values, dim, parts),
                        offset_in_whole(values, dim, parts));
}

ShardedTensor* ShardedTensor::of(const c10::TensorImpl* tensor) {
  return tensor->key_set().has(kBelowKey) ? dynamic_cast<ShardedTensor*>(const_cast<c10::TensorImpl*>(tensor))
                                          : nullptr;
}

const TensorPart& ShardedTensor::summed() const {
  if (part_->placement.is_partial()) {
    part_->values = part_->axis->sum(std::exchange(part_->values, at::Tensor()));
    part_->placement = {};
  }
  return *part_;
}

c10::intrusive_ptr<c10::TensorImpl> ShardedTensor::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                           bool allow_change) const {
  auto copy = c10::make_intrusive<ShardedTensor>(part_);
  copy->set_version_counter(version);
  copy->set_allow_tensor_metadata_change(allow_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> ShardedTensor::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                           bool allow_change) const {
  auto copy = c10::make_intrusive<ShardedTensor>(part_);
  copy->set_version_counter(std::move(version));
  copy->set_allow_tensor_metadata_change(allow_change);
  return copy;
}

void ShardedTensor::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  ShardedTensor* const other = of(impl.get());
  TORCH_CHECK(other != nullptr, "zero: a tensor that is cut over the ranks of the tensor axis cannot become another");
  copy_tensor_metadata(other, this, version_counter(), allow_tensor_metadata_change());
  part_ = other->part_;
}

namespace sharded {

bool is_sharded(const c10::TensorImpl* tensor) {
  return tensor->key_set().has(kBelowKey) && (ShardedTensor::of(tensor) != nullptr || CutStorage::of(tensor) != nullptr);
}

TensorPart part_of(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (!impl->key_set().has(kBelowKey)) return {tensor};
  if (const ShardedTensor* const made = ShardedTensor::of(impl)) return made->part();
  if (const CutStorage* const cut = CutStorage::of(impl)) return cut->part;
  return {tensor};
}

const c10::TensorImpl* values_of(const c10::TensorImpl* tensor) {
  if (const ShardedTensor* const made = ShardedTensor::of(tensor)) return made->part().values.unsafeGetTensorImpl();
  if (const CutStorage* const cut = CutStorage::of(tensor)) return cut->part.values.unsafeGetTensorImpl();
  return tensor;
}

at::Tensor tensor(TensorPart part) {
  if (part.placement.replicated() && part.copied == nullptr) return part.values;
  return at::Tensor(c10::make_intrusive<ShardedTensor>(std::make_shared<TensorPart>(std::move(part))));
}

at::Tensor tensor(at::Tensor values, AxisPlacement placement, const std::shared_ptr<TensorAxis>& axis) {
  return tensor(TensorPart{std::move(values), placement, axis, {}});
}

at::Tensor whole(const TensorPart& part) {
  if (part.copied != nullptr) part.copied->refresh();
  switch (part.placement.kind) {
    case AxisPlacement::Kind::replicated: return part.values;
    case AxisPlacement::Kind::shard: return part.axis->gather(part.values, part.placement.dim);
    case AxisPlacement::Kind::partial: return part.axis->sum(at::Tensor(part.values));
  }
  return part.values;
}

at::Tensor whole(const at::Tensor& tensor) {
  if (const ShardedTensor* const made = ShardedTensor::of(tensor.unsafeGetTensorImpl())) return whole(made->summed());
  return whole(part_of(tensor));
}

// Of the kind that set_data() takes for one of the program's.
at::Tensor parameter(const at::Tensor& part, std::int64_t dim, const std::shared_ptr<TensorAxis>& axis,
                     const std::string& name) {
  const std::vector<std::int64_t> sizes = sizes_of_whole(part, dim, axis->size());
  auto* const self = new CutStorage{{part, AxisPlacement::shard(dim), axis, {}}};
  c10::Storage storage = storage_without_memory(
      part.nbytes() * static_cast<std::size_t>(axis->size()),
      at::DataPtr(nullptr, self, &CutStorage::remove, part.device()),
      "parameter '" + name + "' is cut over the " + std::to_string(axis->size()) +
          " ranks of the tensor axis, and no rank has all of it in its memory");
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys_of(part), part.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides_of_whole(part, dim, axis->size()));
  return tensor;
}

at::Tensor own_gradient(const at::Tensor& gradient, std::optional<std::int64_t> dim,
                        const std::shared_ptr<TensorAxis>& axis) {
  if (dim && !gradient.is_sparse()) {
    const TensorPart part = part_of(gradient);
    if (part.placement == AxisPlacement::shard(*dim)) return part.values;
  }
  const at::Tensor all = is_sharded(gradient.unsafeGetTensorImpl()) ? whole(gradient) : gradient;
  return dim ? axis->own(all.is_sparse() ? all.to_dense() : all, *dim) : all;
}

}  // namespace sharded

at::Tensor whole(const at::Tensor& tensor) {
  const Unwatched unwatched;
  return sharded::whole(tensor.detach());
}

}  // namespace zero
