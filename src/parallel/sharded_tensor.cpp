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
    if (stride > cut || (stride == cut && i != dim && (i < dim || part.size(i) > 1))) stride *= parts;
  }
  return strides;
}

// Of a view's first element, as far from that of what it is a view of, whose blocks are as long.
std::int64_t offset_in_whole(const at::Tensor& part, const TensorCut& cut, int parts) {
  const std::int64_t offset = part.storage_offset(),
                     block = std::max<std::int64_t>(part.size(cut.dim) / cut.blocks * part.stride(cut.dim), 1);
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
                             offset_in_whole(values, part.placement.cut(), parts));
  return tensor;
}

}  // namespace

c10::Storage ShardedStorage::make(TensorPart part, Of of, const std::string& why) {
  const at::Device device = part.values.device();
  const std::size_t bytes =
      of == Of::parameter ? part.values.nbytes() * static_cast<std::size_t>(part.axis->size()) : 0;
  if (part.placement.is_partial() && part.addend == nullptr) part.addend = std::make_shared<Addend>();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                       at::DataPtr(nullptr, new ShardedStorage(std::move(part), of), &remove, device), nullptr,
                       /*resizable=*/false);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "zero: " + why + "; compute with it by operators, or take all of it by zero::whole()");
  return storage;
}

// Where all of the sum is due, the memory of the addends becomes that of the sum, whatever is a view of it.
const TensorPart& ShardedStorage::summed(std::optional<std::int64_t> along) {
  if (!part().placement.is_partial()) return part_;
  if (along) {
    part_.values = part_.axis->sum_own(part_.values, *along);
    part_.placement = AxisPlacement::shard(*along);
    part_.addend.reset();
    return part_;
  }
  const c10::Storage& memory = part_.values.storage();
  const auto elements = static_cast<std::int64_t>(memory.nbytes() / part_.values.element_size());
  part_.axis->sum_(at::empty({0}, part_.values.options()).set_(memory, 0, {elements}, {1}));
  part_.addend->summed = true;
  return part();
}

void ShardedStorage::leave_others() {
  part_.values = part().values.clone();
  part_.copied.reset();
  if (part_.addend != nullptr) part_.addend = std::make_shared<Addend>(*part_.addend);
}

ShardedStorage::~ShardedStorage() {
  if (gathered_.defined()) part_.axis->add_copy(-1);
}

at::Tensor ShardedStorage::gathered() {
  const bool kept = of_ == Of::made && part().placement.sharded() && part_.axis->along_sequence();
  if (!kept) return sharded::whole(summed());
  const std::int64_t writes = part_.axis->writes_of(part_.values);
  if (gathered_.defined() && seen_ == writes) return gathered_;
  if (!gathered_.defined()) part_.axis->add_copy(1);
  seen_ = writes;
  return gathered_ = sharded::whole(part_);
}

namespace sharded {

TensorPart part_of(const at::Tensor& tensor) {
  const ShardedStorage* const storage = ShardedStorage::of(tensor.unsafeGetTensorImpl());
  return storage == nullptr ? TensorPart{tensor} : storage->part();
}

// Of a copy that is taken for a view what it is a view of.
const c10::TensorImpl* values_of(const c10::TensorImpl* tensor) {
  const ShardedStorage* const storage = ShardedStorage::of(tensor);
  if (storage == nullptr) return tensor;
  const TensorPart& part = storage->part();
  return (part.copied == nullptr ? part.values : part.copied->of().values).unsafeGetTensorImpl();
}

at::Tensor tensor(TensorPart part) {
  if (part.placement.replicated() && part.copied == nullptr) return part.values;
  constexpr const char* why = "a tensor is cut over the ranks of the tensor axis, and has no memory";
  return tensor_of(ShardedStorage::make(part, ShardedStorage::Of::made, why), part);
}

at::Tensor tensor(at::Tensor values, AxisPlacement placement, const std::shared_ptr<TensorAxis>& axis) {
  return tensor(TensorPart{std::move(values), placement, axis});
}

// Who writes them meanwhile writes these.
at::Tensor numbers_of_rows(const at::Tensor& numbers, const at::Tensor& table) {
  const TensorPart rows = part_of(table);
  const bool plain = !is_sharded(numbers.unsafeGetTensorImpl()) && !numbers.is_inference();
  if (!plain || !(rows.placement == AxisPlacement::shard(0))) return numbers;
  const TensorPart part{numbers, {}, rows.axis, {}, {}, /*of_rows=*/true};
  constexpr const char* why = "these are numbers of rows of a table that is cut over the ranks of the tensor axis";
  at::Tensor told = tensor_of(ShardedStorage::make(part, ShardedStorage::Of::made, why), part);
  told.unsafeGetTensorImpl()->set_version_counter(numbers.unsafeGetTensorImpl()->version_counter());
  return told;
}

at::Tensor outside_of_graphs(const at::Tensor& tensor) {
  at::Tensor same = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.unsafeGetTensorImpl()->unsafe_storage()), keys_of(part_of(tensor).values), tensor.dtype());
  same.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return same;
}

at::Tensor whole(const TensorPart& part) {
  if (part.copied != nullptr) part.copied->refresh();
  switch (part.placement.kind) {
    case AxisPlacement::Kind::replicated: return part.values;
    case AxisPlacement::Kind::shard: return part.axis->gather(part.values, part.placement.cut());
    case AxisPlacement::Kind::partial: return part.axis->sum(part.values);
  }
  return part.values;
}

at::Tensor whole(const at::Tensor& tensor) {
  ShardedStorage* const storage = ShardedStorage::of(tensor.unsafeGetTensorImpl());
  return storage == nullptr ? tensor : storage->gathered();
}

at::Tensor all_here(const at::Tensor& tensor) {
  ShardedStorage* const storage = ShardedStorage::of(tensor.unsafeGetTensorImpl());
  if (storage == nullptr) return tensor;
  if (storage->part().placement.sharded()) return {};
  return whole(storage->summed());
}

at::Tensor parameter(const at::Tensor& part, const TensorCut& cut, const std::shared_ptr<TensorAxis>& axis,
                     const std::string& name) {
  const TensorPart own{part, AxisPlacement::shard(cut), axis};
  const std::string why = "parameter '" + name + "' is cut over the " + std::to_string(axis->size()) +
                          " ranks of the tensor axis, and no rank has all of it in its memory";
  return tensor_of(ShardedStorage::make(own, ShardedStorage::Of::parameter, why), own);
}

at::Tensor own_gradient(const at::Tensor& gradient, const std::optional<TensorCut>& cut,
                        const std::shared_ptr<TensorAxis>& axis) {
  if (cut && !gradient.is_sparse()) {
    const TensorPart part = part_of(gradient);
    if (part.placement == AxisPlacement::shard(*cut)) return part.values;
  }
  const at::Tensor all = is_sharded(gradient.unsafeGetTensorImpl()) ? whole(gradient) : gradient;
  return cut ? axis->own(all.is_sparse() ? all.to_dense() : all, *cut) : all;
}

}  // namespace sharded

at::Tensor whole(const at::Tensor& tensor) {
  const Unwatched unwatched;
  return sharded::whole(tensor.detach());
}

}  // namespace zero
