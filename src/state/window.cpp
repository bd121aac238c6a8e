#include "state/window.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "state/pager.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

thread_local int watchers = 0;
thread_local Pager* open_pager = nullptr;
thread_local bool backward_running = false;

using Stack = torch::jit::Stack;

// The distinct units among an operator's arguments; more than a handful only for fused lists.
class UnitSet {
 public:
  void add(Unit* unit) {
    for (std::size_t i = 0; i < count_; ++i)
      if (few_[i] == unit) return;
    if (count_ < few_.size()) {
      few_[count_++] = unit;
    } else if (std::find(many_.begin(), many_.end(), unit) == many_.end()) {
      many_.push_back(unit);
    }
  }
  bool empty() const { return count_ == 0; }
  std::vector<Unit*> all() const {
    std::vector<Unit*> units(few_.begin(), few_.begin() + static_cast<std::ptrdiff_t>(count_));
    units.insert(units.end(), many_.begin(), many_.end());
    return units;
  }
  Unit* only() const { return count_ == 1 ? few_[0] : nullptr; }

 private:
  std::array<Unit*, 8> few_{};
  std::size_t count_ = 0;
  std::vector<Unit*> many_;
};

template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.unsafeToTensorImpl());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (!item.isTensor()) break;
      visit(item.unsafeToTensorImpl());
    }
  }
}

UnitSet units_in(c10::ArrayRef<c10::IValue> arguments) {
  UnitSet units;
  for (const c10::IValue& value : arguments)
    for_each_tensor(value, [&](const c10::TensorImpl* tensor) {
      if (Unit* unit = Unit::of(tensor)) units.add(unit);
    });
  return units;
}

bool has_unit(const c10::IValue& value) {
  bool found = false;
  for_each_tensor(value, [&](const c10::TensorImpl* tensor) { found = found || Unit::of(tensor) != nullptr; });
  return found;
}

bool composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// True when the operator only makes views of the units: it needs no values.
bool only_views(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto& formal = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!has_unit(arguments[i])) continue;
    const auto* alias = formal[i].alias_info();
    if (alias == nullptr || alias->isWrite()) return false;
  }
  return true;
}

bool changes_metadata_only(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::requires_grad_" || name == "aten::retain_grad" || name == "aten::detach_";
}

bool writes_unit(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto& formal = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (formal[i].alias_info() != nullptr && formal[i].alias_info()->isWrite() && has_unit(arguments[i])) return true;
  return false;
}

void refuse_writes(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto& formal = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = formal[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    for_each_tensor(arguments[i], [&](const c10::TensorImpl* tensor) {
      const Unit* unit = Unit::of(tensor);
      if (unit == nullptr || unit->pager->pinned(*unit)) return;
      throw StateError("rank " + std::to_string(unit->rank()) + ": " + op.operator_name().name +
                           " would write parameter '" + unit->name_at(tensor->storage_offset()) +
                           "', and the engine's shards would not see it",
                       "write parameters inside zero::gather");
    });
  }
}

bool floating(const c10::TensorImpl* tensor) {
  const auto type = c10::typeMetaToScalarType(tensor->dtype());
  return type == at::kFloat || type == at::kDouble;
}

// Operators that neither promote their arguments nor are cast by autocast (norms, say) get their
// 16-bit parameters in fp32 when something else among the arguments is fp32.
bool needs_promotion(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.hasTag(at::Tag::pointwise) || op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU)) return false;
  bool wide = false;
  for (const c10::IValue& value : arguments)
    for_each_tensor(value, [&](const c10::TensorImpl* tensor) {
      wide = wide || (Unit::of(tensor) == nullptr && tensor->dim() > 0 && floating(tensor));
    });
  return wide;
}

at::Tensor widened(const at::Tensor& tensor) {
  const bool narrow = tensor.defined() && at::isReducedFloatingType(tensor.scalar_type()) &&
                      Unit::of(tensor.unsafeGetTensorImpl()) != nullptr;
  return narrow ? tensor.to(at::kFloat) : tensor;
}

void promote(const c10::OperatorHandle& op, std::span<c10::IValue> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = arguments[i];
    const auto* alias = op.schema().arguments()[i].alias_info();
    if (!has_unit(value) || (alias != nullptr && alias->isWrite())) continue;
    if (value.isTensor()) {
      value = widened(value.toTensor());
    } else {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector()) list.push_back(widened(item));
      value = std::move(list);
    }
  }
}

bool random(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

// Inside a window, random operators on the CPU draw from the engine's generator.
void give_generator(const c10::OperatorHandle& op, std::span<c10::IValue> arguments) {
  const auto& formal = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (formal[i].name() == "generator" && arguments[i].isNone()) arguments[i] = open_pager->generator();
}

bool draws_here(const c10::OperatorHandle& op) {
  return open_pager != nullptr && at::GradMode::is_enabled() && random(op);
}

bool runs_backward(const c10::OperatorHandle& op) {
  static const c10::OperatorHandle backward = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_backward", "");
  return op == backward;
}

// Units of several engines may meet in one operator; each pager pages its own.
std::vector<std::vector<Unit*>> by_pager(const std::vector<Unit*>& units) {
  std::vector<std::vector<Unit*>> groups;
  for (Unit* unit : units) {
    const auto group = std::find_if(groups.begin(), groups.end(),
                                    [&](const std::vector<Unit*>& g) { return g.front()->pager == unit->pager; });
    if (group == groups.end()) {
      groups.push_back({unit});
    } else {
      group->push_back(unit);
    }
  }
  return groups;
}

// True when the units' engine computes under autocast.
bool page_in(std::span<Unit* const> units) {
  Pager& pager = *units.front()->pager;
  pager.open_window();
  pager.touch(units);
  return pager.autocast();
}

// Pages in what the operator needs; true when it must run with the fallback still watching inside it.
bool prepare(const c10::OperatorHandle& op, std::span<c10::IValue> arguments, bool& with_units) {
  const c10::ArrayRef<c10::IValue> view(arguments.data(), arguments.size());
  const UnitSet units = units_in(view);
  with_units = !units.empty();
  if (!with_units) return false;
  if (only_views(op, view)) return composite(op);
  if (writes_unit(op, view)) {
    if (changes_metadata_only(op)) return false;
    refuse_writes(op, view);
  }
  bool autocast = false;
  if (Unit* unit = units.only()) {
    autocast = page_in(std::span(&unit, 1));
  } else {
    for (const std::vector<Unit*>& group : by_pager(units.all())) autocast |= page_in(group);
  }
  if (autocast && needs_promotion(op, view)) promote(op, arguments);
  return false;
}

// An evaluation is over when gradients are enabled again.
void end_evaluation() {
  if (open_pager != nullptr && open_pager->evaluating() && at::GradMode::is_enabled()) open_pager->close_window();
}

void see(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const std::span<c10::IValue> arguments(stack->data() + (stack->size() - count), count);
  end_evaluation();
  bool with_units = false;
  bool inside = prepare(op, arguments, with_units);
  if (draws_here(op)) {
    give_generator(op, arguments);
    inside = true;
  }
  if (inside || runs_backward(op)) {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
  } else {
    const c10::impl::ExcludeDispatchKeyGuard guard(kKey);
    if (!with_units || !run_in_float8(op, stack)) op.callBoxed(stack);
  }
}

}  // namespace

namespace window {

Blind::Blind() : excluded_before_(c10::impl::tls_is_dispatch_key_excluded(kKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kKey, true);
}

Blind::~Blind() {
  c10::impl::tls_set_dispatch_key_excluded(kKey, excluded_before_);
}

void watch() {
  if (watchers++ == 0) c10::impl::tls_set_dispatch_key_included(kKey, true);
}

void unwatch() {
  if (--watchers == 0) c10::impl::tls_set_dispatch_key_included(kKey, false);
}

void enter(Pager* pager) {
  open_pager = pager;
}

void leave(Pager* pager) {
  if (open_pager == pager) open_pager = nullptr;
}

Pager* open() {
  return open_pager;
}

void set_in_backward(bool running) {
  backward_running = running;
}

bool in_backward() {
  return backward_running;
}

}  // namespace window
}  // namespace zero

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&zero::see>());
}
