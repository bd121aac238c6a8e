// An operator on tensors of which the ranks of a TensorAxis have parts, below autograd: by a rule, on the parts, or,
// where no rule takes it, whole on every rank, which is right, and counted.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "parallel/sharded_tensor.h"

namespace zero {

class ShardedCall {
 public:
  // The arguments are uppermost on the stack, some of them sharded.
  ShardedCall(const c10::OperatorHandle& op, torch::jit::Stack* stack);

  // Puts the results in the place of the arguments.
  void run();

  // For rules. Arguments by number, as the schema has them; those that it does not have are None.
  std::size_t size() const { return arguments_.size(); }
  const c10::IValue& operator[](std::size_t i) const { return arguments_[i]; }
  // By the schema's name; -1: it has none of that name.
  int find(std::string_view name) const;
  bool has_tensor(std::size_t i) const {
    return i < size() && arguments_[i].isTensor() && arguments_[i].toTensor().defined();
  }
  at::Tensor tensor(std::size_t i) const { return arguments_[i].toTensor(); }   // with global sizes
  const TensorPart& part(std::size_t i) const { return parts_[i].front(); }     // of a tensor
  std::span<const TensorPart> parts(std::size_t i) const { return parts_[i]; }  // of a list, too
  bool sharded(std::size_t i) const { return has_tensor(i) && part(i).placement.sharded(); }
  const std::shared_ptr<TensorAxis>& axis() const { return axis_; }
  const c10::OperatorHandle& op() const { return op_; }
  bool writes(std::size_t i) const;

  // This rank's part of an argument that all have.
  at::Tensor own(std::size_t i, const TensorCut& cut) const { return axis_->own(part(i).values, cut); }

  // In the place of a rule: all of what is cut is due here, on every rank, and kept for others.
  bool gather();

  // The operator on the parts, `changed` in the place of some arguments; and on arguments that are none of the call's.
  using Changed = std::vector<std::pair<std::size_t, c10::IValue>>;
  std::vector<c10::IValue> on_parts(const Changed& changed = {}) const;
  // The call's results are of these placements, all of one, or each of its own. What is written is its own result.
  bool give(std::vector<c10::IValue> results, const std::vector<AxisPlacement>& placements);
  bool give(at::Tensor values, AxisPlacement placement) { return give({c10::IValue(std::move(values))}, {placement}); }

 private:
  void run_by_rule();
  bool results_are_known() const;
  void leave_others();
  std::shared_ptr<Addend> addend_of(const at::Tensor& values) const;
  void sum_partial();
  std::optional<std::int64_t> cut_of_sum(const at::Tensor& partial) const;
  void refresh_copies();
  void note_writes();
  bool any(AxisPlacement::Kind kind) const;
  bool any_of_rows() const;
  bool any_in_blocks() const;
  void plainly();
  void whole();
  std::vector<c10::IValue> copies_of_views(std::vector<c10::IValue> results) const;
  std::vector<c10::IValue> views_of_copies(std::vector<c10::IValue> results) const;
  bool changes_sizes() const;
  void change_sizes();
  const c10::IValue* written_as(std::size_t result) const;
  void put(std::vector<c10::IValue> results);

  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  std::vector<c10::IValue> arguments_;
  std::vector<std::vector<TensorPart>> parts_;  // by argument
  std::shared_ptr<TensorAxis> axis_;
};

// What operators on sharded tensors come to from now on, in the process.
void run_sharded_calls();

// Operators that have no kernel for the meta device, as far as they are known.
using WithoutMeta = std::unordered_set<c10::OperatorHandle>;

// While it lives, a call of this thread's on tensors of the meta device, for which its operator has no kernel, results
// in parts of these, which are what the operator gives of the whole.
class KnownResults {
 public:
  KnownResults(const std::vector<c10::IValue>& whole, WithoutMeta& without);
  ~KnownResults();
  KnownResults(const KnownResults&) = delete;
  KnownResults& operator=(const KnownResults&) = delete;

 private:
  friend class ShardedCall;

  const std::vector<c10::IValue>& whole_;
  WithoutMeta& without_;
  KnownResults* before_;
};

// What does an operator on parts: true, once the call has its results; false: not these. It exchanges nothing before it
// knows that it can.
struct ShardedRule {
  bool (*apply)(ShardedCall& call);
  // What else it takes than parts of one block: what is partial, which is summed before for others; numbers of rows
  // that are cut, of which others take nothing; parts in several blocks, of which others take all.
  enum Takes : unsigned { parts = 0, partial = 1, rows = 2, blocks = 4 };
  unsigned takes = parts;
};
using NamedShardedRule = std::pair<const char*, ShardedRule>;

// Null: there is none.
const ShardedRule* sharded_rule_of(const c10::OperatorHandle& op);

namespace sharded_rules {
// Of operators of these names, in every overload but those with `out`.
std::span<const NamedShardedRule> views(), pointwise(), products(), reductions(), network();
}  // namespace sharded_rules

}  // namespace zero
