// Tensors with global sizes of which each rank of a TensorAxis has a part: for autograd and the program they are as on
// one rank; below autograd operators compute with the parts (sharded_call.h). DTensor's placements (PyTorch), by
// their names there.
//
// They are ordinary tensors, whose storage has no memory, and in the place of it says where this rank's part is, as a
// deferred tensor's says what its values are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "backwards/unwatched.h"
#include "parallel/tensor_axis.h"

namespace zero {

struct AxisPlacement {
  enum class Kind : std::uint8_t {
    replicated,  // all of it
    shard,       // of dimension `dim` this rank's part of as many, in rank order, of each of `blocks`: a TensorCut
    partial,     // an addend of it
  };
  Kind kind = Kind::replicated;
  std::int64_t dim = 0, blocks = 1;

  static constexpr AxisPlacement shard(std::int64_t dim, std::int64_t blocks = 1) { return {Kind::shard, dim, blocks}; }
  static constexpr AxisPlacement shard(const TensorCut& cut) { return shard(cut.dim, cut.blocks); }
  static constexpr AxisPlacement partial() { return {Kind::partial}; }
  TensorCut cut() const { return {dim, blocks}; }
  // The same, of another dimension where it is one's.
  AxisPlacement at(std::int64_t other) const { return {kind, sharded() ? other : 0, blocks}; }
  bool replicated() const { return kind == Kind::replicated; }
  bool sharded() const { return kind == Kind::shard; }
  bool is_partial() const { return kind == Kind::partial; }
  bool operator==(const AxisPlacement&) const = default;
};

class CopiedView;

// Memory of addends, which all tensors that are views of it share: it is summed once, for all of them.
struct Addend {
  bool summed = false;
};

// What this rank has of a tensor.
struct TensorPart {
  at::Tensor values;
  AxisPlacement placement = {};
  std::shared_ptr<TensorAxis> axis = {};    // null: of a plain tensor, which every rank has
  std::shared_ptr<CopiedView> copied = {};  // of one that is replicated, where the program takes it for a view
  std::shared_ptr<Addend> addend = {};      // of one that is partial, or was
  bool of_rows = false;                     // numbers of rows of a table, which are cut; itself it is replicated
};

// What the storage of a sharded tensor has in the place of memory: the context of its data pointer, so that it is found
// in every tensor that has the storage.
class ShardedStorage {
 public:
  // Null where a tensor is another's.
  static ShardedStorage* of(const c10::TensorImpl* tensor) {
    if (!tensor->key_set().has(kBelowKey) || !tensor->has_storage()) return nullptr;
    const at::DataPtr& pointer = tensor->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    return pointer.get_deleter() == &remove ? static_cast<ShardedStorage*>(pointer.get_context()) : nullptr;
  }
  // Of a parameter, or else of what an operator made. Whoever takes its memory is told `why` there is none.
  enum class Of : std::uint8_t { parameter, made };
  static c10::Storage make(TensorPart part, Of of, const std::string& why);

  // Of one that was partial, once somebody needed its sum, that.
  const TensorPart& part() const {
    if (part_.addend != nullptr && part_.addend->summed) part_.placement = {};
    return part_;
  }
  bool is_parameter() const { return of_ == Of::parameter; }
  // Its values have memory of their own from now on: what has been a view of others is none.
  void leave_others();
  // The ranks' sum takes the place of the addends, or this rank's part of it along a dimension. Collective where they
  // are there.
  const TensorPart& summed(std::optional<std::int64_t> along = {});
  // All of it, kept for as long as the storage lives and nothing is written to the parts, where the axis goes along the
  // sequence: several layers have one input. Collective where it is not there.
  at::Tensor gathered();

 private:
  ShardedStorage(TensorPart part, Of of) : part_(std::move(part)), of_(of) {}
  ~ShardedStorage();
  ShardedStorage(const ShardedStorage&) = delete;
  ShardedStorage& operator=(const ShardedStorage&) = delete;
  static void remove(void* self) { delete static_cast<ShardedStorage*>(self); }

  mutable TensorPart part_;
  Of of_;
  at::Tensor gathered_;
  std::int64_t seen_ = 0;  // writes of the parts, when they were gathered
};

namespace sharded {

// Whether operators on it come to the ranks' parts.
inline bool is_sharded(const c10::TensorImpl* tensor) {
  return ShardedStorage::of(tensor) != nullptr;
}
// What this rank has of any tensor.
TensorPart part_of(const at::Tensor& tensor);
// Where this rank's part of a tensor lies: the tensor itself, unless it is sharded.
const c10::TensorImpl* values_of(const c10::TensorImpl* tensor);
// A tensor of which the ranks have these parts; of one that is replicated that itself, unless it is taken for a view.
at::Tensor tensor(TensorPart part);
at::Tensor tensor(at::Tensor values, AxisPlacement placement, const std::shared_ptr<TensorAxis>& axis);
// Numbers of rows of a table, that say so where its rows are cut: their gradient is then of each rank's own.
at::Tensor numbers_of_rows(const at::Tensor& numbers, const at::Tensor& table);
// The same tensor without what autograd knows of it.
at::Tensor outside_of_graphs(const at::Tensor& tensor);
// All of it. Collective where it is sharded.
at::Tensor whole(const at::Tensor& tensor);
at::Tensor whole(const TensorPart& part);
// All of what every rank has, or of a sum that is due; undefined: it is cut. Collective where a sum is due.
at::Tensor all_here(const at::Tensor& tensor);

// A parameter that is cut: `part` is this rank's. Whoever takes its memory is told `name`.
at::Tensor parameter(const at::Tensor& part, const TensorCut& cut, const std::shared_ptr<TensorAxis>& axis,
                     const std::string& name);
// Of a gradient that autograd has brought, this rank's part; `cut`: as the parameter is; none: it is replicated.
// Collective where a sum, or a gather, is due.
at::Tensor own_gradient(const at::Tensor& gradient, const std::optional<TensorCut>& cut,
                        const std::shared_ptr<TensorAxis>& axis);

}  // namespace sharded
}  // namespace zero
