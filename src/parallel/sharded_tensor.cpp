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
  const std::int64_t offset = part.storage_offset(),
                     block = std::max<std::int64_t>(part.size(dim) * part.stride(dim), 1);
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

at::Tensor tensor_of(c10::Storage storage, const TensorPart& part) {
  const at::Tensor& values = part.values;
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys_of(values), values.dtype());
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!part.placement.sharded()) {
    impl.set_sizes_and_strides(values.sizes(), values.strides(), values.storage_offset());
    return tensor;
  }
  const std::int64_t dim = part.placement.dim;
  const int parts = part.axis->size();
  impl.set_sizes_and_strides(sizes_of_whole(values, dim, parts), strides_of_whole(values, dim, parts),
                             offset_in_whole(values, dim, parts));
  return tensor;
}

}  // namespace

c10::Storage ShardedStorage::make(TensorPart part, std::size_t bytes, const std::string& why) {
  const at::Device device = part.values.device();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                       at::DataPtr(nullptr, new ShardedStorage(std::move(part)), &remove, device), nullptr,
                       /*resizable=*/false);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "zero: " + why + "; compute with it by operators, or take all of it by zero::whole()");
  return storage;
}

const TensorPart& ShardedStorage::summed(std::optional<std::int64_t> along) {
  if (!part_.placement.is_partial()) return part_;
  at::Tensor addend = std::exchange(part_.values, at::Tensor());
  part_.values = along ? part_.axis->sum_own(addend, *along) : part_.axis->sum(std::move(addend));
  part_.placement = along ? AxisPlacement::shard(*along) : AxisPlacement();
  return part_;
}

ShardedStorage::~ShardedStorage() {
  if (gathered_.defined()) part_.axis->add_copy(-1);
}

at::Tensor ShardedStorage::gathered() {
  if (!part_.placement.sharded() || !part_.axis->along_sequence()) return sharded::whole(summed());
  const std::int64_t writes = part_.axis->writes_of(part_.values);
  if (gathered_.defined() && seen_ == writes) return gathered_;
  if (!gathered_.defined()) part_.axis->add_copy(1);
  seen_ = writes;
  return gathered_ = sharded::whole(part_);
}

namespace sharded {

TensorPart part_of(const at::Tensor& tensor) {
  const ShardedStorage* const storage = ShardedStorage::of(tensor.unsafeGetTensorImpl());
  return storage == nullptr ? TensorPart{tensor, {}, {}, {}} : storage->part();
}

const c10::TensorImpl* values_of(const c10::TensorImpl* tensor) {
  const ShardedStorage* const storage = ShardedStorage::of(tensor);
  return storage == nullptr ? tensor : storage->part().values.unsafeGetTensorImpl();
}

at::Tensor tensor(TensorPart part) {
  if (part.placement.replicated() && part.copied == nullptr) return part.values;
  return tensor_of(
      ShardedStorage::make(part, 0, "a tensor is cut over the ranks of the tensor axis, and has no memory"), part);
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
  ShardedStorage* const storage = ShardedStorage::of(tensor.unsafeGetTensorImpl());
  return storage == nullptr ? tensor : storage->gathered();
}

at::Tensor parameter(const at::Tensor& part, std::int64_t dim, const std::shared_ptr<TensorAxis>& axis,
                     const std::string& name) {
  const TensorPart cut{part, AxisPlacement::shard(dim), axis, {}};
  const std::string ranks = std::to_string(axis->size());
  return tensor_of(ShardedStorage::make(cut, part.nbytes() * static_cast<std::size_t>(axis->size()),
                                        "parameter '" + name + "' is cut over the " + ranks +
                                            " ranks of the tensor axis, and no rank has all of it in its memory"),
                   cut);
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
