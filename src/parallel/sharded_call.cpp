#include "parallel/sharded_call.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "backwards/arguments.h"
#include "backwards/unwatched.h"
#include "deferred/deferred_operators.h"
#include "deferred/deferred_tensors.h"
#include "parallel/copied_view.h"
#include "zero/error.h"

namespace zero {
namespace {

using Stack = torch::jit::Stack;

thread_local KnownResults* known_results = nullptr;

std::vector<c10::IValue> uppermost(const Stack& stack, std::size_t count) {
  return {stack.end() - static_cast<std::ptrdiff_t>(count), stack.end()};
}

// Its results are views, of which some are told the strides of what they look at.
bool is_view(const c10::OperatorHandle& op) {
  return std::ranges::any_of(op.schema().returns(), [](const c10::Argument& each) {
    return each.alias_info() != nullptr && !each.alias_info()->isWrite();
  });
}

bool is_in_place_view(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::inplace_view);
}

// The operator that returns what this one makes of its first argument; none: that is no view. transpose_() has no name
// of an overload, and transpose() has one.
std::optional<c10::OperatorHandle> view_instead_of(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  for (const std::string& overload : {op.operator_name().overload_name, std::string("int")})
    if (auto view = c10::Dispatcher::singleton().findSchema({name.substr(0, name.size() - 1), overload}))
      return is_view(*view) ? view : std::nullopt;
  return {};
}

// Whether it writes results into arguments that are there for that.
bool writes_others(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 1; i < arguments.size(); ++i)
    if (deferred_operators::is_written(op, i)) return true;
  return false;
}

class Table {
 public:
  Table() {
    std::unordered_map<std::string_view, const ShardedRule*> by_name;
    for (const auto& rules : {sharded_rules::views(), sharded_rules::pointwise(), sharded_rules::products(),
                              sharded_rules::reductions(), sharded_rules::network()})
      for (const auto& [name, rule] : rules) by_name.emplace(name, &rule);
    constexpr std::string_view library = "aten::";
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (!std::string_view(name.name).starts_with(library) || name.overload_name.ends_with("out")) continue;
      const auto found = by_name.find(std::string_view(name.name).substr(library.size()));
      if (found == by_name.end()) continue;
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (op && !writes_others(*op)) by_op_.emplace(*op, found->second);
    }
  }

  const ShardedRule* of(const c10::OperatorHandle& op) const {
    const auto found = by_op_.find(op);
    return found == by_op_.end() ? nullptr : found->second;
  }

 private:
  std::unordered_map<c10::OperatorHandle, const ShardedRule*> by_op_;
};

bool any_sharded(const c10::OperatorHandle& op, const Stack& stack) {
  bool any = false;
  for (std::size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i)
    for_each_defined(stack[i],
                     [&](const at::Tensor& tensor) { any = any || sharded::is_sharded(tensor.unsafeGetTensorImpl()); });
  return any;
}

bool consists_of_others(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

// One that consists of others, as it comes where no gradients are noted, is taken apart.
bool run_if_sharded(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (!any_sharded(op, *stack)) return false;
  if (consists_of_others(op)) {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kBelowKey), stack);
    return true;
  }
  const deferred_tensors::Off off;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  ShardedCall(op, stack).run();
  return true;
}

}  // namespace

KnownResults::KnownResults(const std::vector<c10::IValue>& whole, WithoutMeta& without)
    : whole_(whole), without_(without), before_(std::exchange(known_results, this)) {}

KnownResults::~KnownResults() {
  known_results = before_;
}

void run_sharded_calls() {
  deferred_tensors::others_run_by(&run_if_sharded);
}

const ShardedRule* sharded_rule_of(const c10::OperatorHandle& op) {
  static const Table table;
  return table.of(op);
}

ShardedCall::ShardedCall(const c10::OperatorHandle& op, Stack* stack)
    : op_(op), stack_(stack), arguments_(uppermost(*stack, op.schema().arguments().size())), parts_(arguments_.size()) {
  for (std::size_t i = 0; i < arguments_.size(); ++i)
    for_each_defined(arguments_[i], [&](const at::Tensor& tensor) {
      parts_[i].push_back(sharded::part_of(tensor));
      const std::shared_ptr<TensorAxis>& axis = parts_[i].back().axis;
      if (axis == nullptr) return;
      if (axis_ == nullptr) axis_ = axis;
      if (!axis_->same_ranks(*axis))
        throw StateError("operator " + op.operator_name().name + " meets tensors that engines on two meshes have cut",
                         "build both engines on one Mesh, or take all of one tensor by zero::whole()");
    });
}

bool ShardedCall::writes(std::size_t i) const {
  return deferred_operators::is_written(op_, i);
}

int ShardedCall::find(std::string_view name) const {
  const auto& formal = op_.schema().arguments();
  for (std::size_t i = 0; i < formal.size(); ++i)
    if (formal[i].name() == name) return static_cast<int>(i);
  return -1;
}

bool ShardedCall::any(AxisPlacement::Kind kind) const {
  return std::ranges::any_of(parts_, [&](const std::vector<TensorPart>& parts) {
    return std::ranges::any_of(parts, [&](const TensorPart& part) { return part.placement.kind == kind; });
  });
}

bool ShardedCall::any_of_rows() const {
  return std::ranges::any_of(parts_,
                             [](const auto& parts) { return std::ranges::any_of(parts, &TensorPart::of_rows); });
}

bool ShardedCall::any_in_blocks() const {
  return std::ranges::any_of(parts_, [](const auto& parts) {
    return std::ranges::any_of(parts, [](const TensorPart& part) { return part.placement.blocks > 1; });
  });
}

void ShardedCall::run() {
  if (changes_sizes()) return change_sizes();
  leave_others();
  refresh_copies();
  run_by_rule();
  note_writes();
}

// Autograd adds to a gradient in place where it thinks that its memory is the gradient's alone, which it asks the
// storage that has none.
void ShardedCall::leave_others() {
  const bool accumulates = op_.operator_name().name == "aten::add_" && !at::GradMode::is_enabled() &&
                           torch::autograd::get_current_graph_task_id() != -1;
  if (!accumulates || parts_[0].empty() || parts_[0][0].axis == nullptr) return;
  ShardedStorage& storage = *ShardedStorage::of(tensor(0).unsafeGetTensorImpl());
  if (parts_[0][0].copied == nullptr && parts_[0][0].values.storage().use_count() == 1) return;
  storage.leave_others();
  parts_[0][0] = storage.part();
}

bool ShardedCall::results_are_known() const {
  return known_results != nullptr && known_results->without_.contains(op_);
}

// What is partial is summed where no rule takes it as it is.
void ShardedCall::run_by_rule() {
  const ShardedRule* const rule = sharded_rule_of(op_);
  const auto by_rule = [&] {
    const bool applied =
        rule != nullptr && ((rule->takes & ShardedRule::blocks) != 0 || !any_in_blocks()) && rule->apply(*this);
    if (applied) axis_->count(op_.operator_name().name, true);
    return applied;
  };
  if (any(AxisPlacement::Kind::partial)) {
    if (rule != nullptr && (rule->takes & ShardedRule::partial) != 0 && by_rule()) return;
    sum_partial();
  }
  const bool rows = rule != nullptr && (rule->takes & ShardedRule::rows) != 0 && any_of_rows();
  if (!any(AxisPlacement::Kind::shard) && !rows) return plainly();
  if (by_rule()) return;
  axis_->count(op_.operator_name().name, false);
  whole();
}

bool ShardedCall::gather() {
  whole();
  return true;
}

bool ShardedCall::changes_sizes() const {
  return is_in_place_view(op_) && !parts_.empty() && !parts_[0].empty() && parts_[0][0].axis != nullptr;
}

// The tensor becomes the view. What autograd has saved of it has its storage, and stays as it was.
void ShardedCall::change_sizes() {
  const at::Tensor self = tensor(0);
  const auto view = view_instead_of(op_);
  if (!view || ShardedStorage::of(self.unsafeGetTensorImpl())->is_parameter())
    throw StateError("operator " + op_.operator_name().name +
                         " would change, in place, the sizes of what is cut over the ranks of the tensor axis",
                     "use the operator that returns another tensor");
  Stack stack(arguments_.begin(), arguments_.end());
  ShardedCall(*view, &stack).run();
  const at::Tensor seen = stack.front().toTensor();
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  impl.set_storage_keep_dtype(seen.storage());
  impl.set_sizes_and_strides(seen.sizes(), seen.strides(), seen.storage_offset());
  put({c10::IValue(self)});
}

void ShardedCall::refresh_copies() {
  for (const auto& parts : parts_)
    for (const TensorPart& part : parts)
      if (part.copied != nullptr) part.copied->refresh();
}

void ShardedCall::note_writes() {
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    if (!writes(i)) continue;
    for (const TensorPart& part : parts_[i])
      part.copied != nullptr ? part.copied->write_back() : axis_->wrote(part.values);
  }
}

// Where hidden states [batch, sequence, size] are cut along the sequence each rank needs its part of a sum alone.
std::optional<std::int64_t> ShardedCall::cut_of_sum(const at::Tensor& partial) const {
  constexpr std::int64_t sequence = 1;
  const bool cut = axis_->along_sequence() && partial.dim() == 3 && axis_->divides(partial.size(sequence));
  return cut ? std::optional(sequence) : std::nullopt;
}

void ShardedCall::sum_partial() {
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    auto part = parts_[i].begin();
    for_each_defined(arguments_[i], [&](const at::Tensor& tensor) {
      if (part->placement.is_partial())
        *part = ShardedStorage::of(tensor.unsafeGetTensorImpl())->summed(cut_of_sum(tensor));
      ++part;
    });
  }
}

std::vector<c10::IValue> ShardedCall::on_parts(const Changed& changed) const {
  if (results_are_known()) return known_results->whole_;
  Stack stack;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const auto other = std::ranges::find(changed, i, &std::pair<std::size_t, c10::IValue>::first);
    if (other != changed.end()) {
      stack.push_back(other->second);
      continue;
    }
    auto part = parts_[i].begin();
    stack.push_back(with_tensors(arguments_[i], [&](const at::Tensor&) { return (part++)->values; }));
  }
  try {
    op_.callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    if (known_results == nullptr) throw;
    known_results->without_.insert(op_);
    return known_results->whole_;
  }
  return stack;
}

// On tensors that are all plain, or sums that have come.
void ShardedCall::plainly() {
  put(views_of_copies(on_parts()));
}

// What the operator writes is written back: each rank keeps its part.
void ShardedCall::whole() {
  Changed changed;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    if (std::ranges::none_of(parts_[i], [](const TensorPart& part) { return part.placement.sharded(); })) continue;
    auto part = parts_[i].begin();
    changed.emplace_back(
        i, with_tensors(arguments_[i], [&](const at::Tensor& tensor) { return whole_laid_out(tensor, *part++); }));
  }
  std::vector<c10::IValue> results = on_parts(changed);
  for (const auto& [i, value] : changed) {
    if (!writes(i)) continue;
    auto part = parts_[i].begin();
    for_each_defined(value, [&](const at::Tensor& written) {
      if (part->placement.sharded()) part->values.copy_(axis_->own(written, part->placement.cut()));
      ++part;
    });
  }
  put(is_view(op_) ? copies_of_views(std::move(results)) : std::move(results));
}

// Who writes one means to write what it is a view of.
std::vector<c10::IValue> ShardedCall::copies_of_views(std::vector<c10::IValue> results) const {
  std::size_t which = 0;
  for (c10::IValue& result : results)
    result = with_tensors(result, [&](const at::Tensor& copy) {
      return sharded::tensor({copy, {}, axis_, std::make_shared<CopiedView>(op_, arguments_, which++, copy), {}});
    });
  return results;
}

std::vector<c10::IValue> ShardedCall::views_of_copies(std::vector<c10::IValue> results) const {
  if (!is_view(op_) || parts_.front().empty() || parts_.front().front().copied == nullptr) return results;
  for (c10::IValue& result : results)
    result = with_tensors(result, [&](const at::Tensor& view) {
      return sharded::tensor({view, {}, axis_, parts_.front().front().copied, {}});
    });
  return results;
}

const c10::IValue* ShardedCall::written_as(std::size_t result) const {
  const auto* const alias = op_.schema().returns()[result].alias_info();
  if (alias == nullptr || !alias->isWrite()) return nullptr;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const auto* const formal = op_.schema().arguments()[i].alias_info();
    if (formal != nullptr && formal->beforeSets() == alias->beforeSets()) return &arguments_[i];
  }
  return nullptr;
}

void ShardedCall::put(std::vector<c10::IValue> results) {
  for (std::size_t i = 0; i < results.size(); ++i)
    if (const c10::IValue* const written = written_as(i)) results[i] = *written;
  torch::jit::drop(*stack_, arguments_.size());
  for (c10::IValue& result : results) stack_->push_back(std::move(result));
}

// Of a view of addends among the arguments theirs; null: it is new.
std::shared_ptr<Addend> ShardedCall::addend_of(const at::Tensor& values) const {
  for (const auto& parts : parts_)
    for (const TensorPart& part : parts)
      if (part.placement.is_partial() && part.values.storage().is_alias_of(values.storage())) return part.addend;
  return nullptr;
}

bool ShardedCall::give(std::vector<c10::IValue> results, const std::vector<AxisPlacement>& placements) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (written_as(i) != nullptr) continue;
    const AxisPlacement placement = placements.size() == 1 ? placements.front() : placements[i];
    results[i] = with_tensors(results[i], [&](at::Tensor values) {
      if (placement.sharded() && results_are_known()) values = axis_->own(values, placement.cut());
      if (!placement.is_partial()) return sharded::tensor(values, placement, axis_);
      if (axis_->in_tiles()) return axis_->sum(values);
      return sharded::tensor({values, placement, axis_, {}, addend_of(values)});
    });
  }
  put(std::move(results));
  return true;
}

}  // namespace zero
