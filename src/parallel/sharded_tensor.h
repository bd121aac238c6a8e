// Tensors with global sizes of which each rank of a TensorAxis has a part: for autograd and the program they are as on
// one rank; below autograd operators compute with the parts (sharded_call.h). DTensor's placements (PyTorch), by
// their names there.
//
// A parameter that is cut is an ordinary tensor of its own sizes, whose storage has no memory, and in the place of it
// says where this rank's part is, as a deferred tensor's says what its values are. Whatever operators make of parts is
// a ShardedTensor.
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
    shard,       // of dimension `dim` this rank's part of as many, in rank order
    partial,     // an addend of it
  };
  Kind kind = Kind::replicated;
  std::int64_t dim = 0;

  static constexpr AxisPlacement shard(std::int64_t dim) { return {Kind::shard, dim}; }
  static constexpr AxisPlacement partial() { return {Kind::partial}; }
  bool replicated() const { return kind == Kind::replicated; }
  bool sharded() const { return kind == Kind::shard; }
  bool is_partial() const { return kind == Kind::partial; }
  bool operator==(const AxisPlacement&) const = default;
};

class CopiedView;

// What this rank has of a tensor.
struct TensorPart {
  at::Tensor values;
  AxisPlacement placement = {};
  std::shared_ptr<TensorAxis> axis = {};    // null: of a plain tensor, which every rank has
  std::shared_ptr<CopiedView> copied = {};  // of one that is replicated, where the program takes it for a view
};

class ShardedTensor final : public c10::TensorImpl {
 public:
  // Null where a tensor is another's.
  static ShardedTensor* of(const c10::TensorImpl* tensor);

  // Of one that was partial, once somebody needed its sum, that.
  const TensorPart& part() const { return *part_; }
  // The ranks' sum takes the place of the addends, for all tensors that are this one. Collective where it is partial.
  const TensorPart& summed() const;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;

  explicit ShardedTensor(std::shared_ptr<TensorPart> part);

 private:
  std::shared_ptr<TensorPart> part_;  // of all that are this tensor, as detach() makes them
};

namespace sharded {

// Whether operators on it come to the ranks' parts.
bool is_sharded(const c10::TensorImpl* tensor);
// What this rank has of any tensor.
TensorPart part_of(const at::Tensor& tensor);
// Where this rank's part of a tensor lies: the tensor itself, unless it is sharded.
const c10::TensorImpl* values_of(const c10::TensorImpl* tensor);
// A tensor of which the ranks have these parts; of one that is replicated that itself, unless it is taken for a view.
at::Tensor tensor(TensorPart part);
at::Tensor tensor(at::Tensor values, AxisPlacement placement, const std::shared_ptr<TensorAxis>& axis);
// All of it. Collective where it is sharded.
at::Tensor whole(const at::Tensor& tensor);
at::Tensor whole(const TensorPart& part);

// A parameter that is cut: `part` is this rank's, along dimension `dim`. Whoever takes its memory is told `name`.
at::Tensor parameter(const at::Tensor& part, std::int64_t dim, const std::shared_ptr<TensorAxis>& axis,
                     const std::string& name);
// Of a gradient that autograd has brought, this rank's part; `dim`: that along which the parameter is cut; none: it is
// replicated. Collective where a sum, or a gather, is due.
at::Tensor own_gradient(const at::Tensor& gradient, std::optional<std::int64_t> dim,
                        const std::shared_ptr<TensorAxis>& axis);

}  // namespace sharded
}  // namespace zero
