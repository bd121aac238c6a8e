#include "operators/dispatch.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backwards/attention.h"
#include "backwards/autocast.h"
#include "backwards/micro_batch.h"
#include "backwards/random_numbers.h"
#include "backwards/unwatched.h"
#include "base/lifetimes.h"
#include "operators/batch_norm.h"
#include "operators/float8_linear.h"
#include "operators/lstm.h"
#include "operators/max_norms.h"
#include "operators/operands.h"
#include "operators/program_functions.h"
#include "zero/error.h"

namespace zero {

struct Watchers {
  std::atomic<int> count = 0;
};

namespace {

// How many operators the fallback watches inside of.
thread_local int watched_inside = 0;
// Inside an operator that autocast has cast the arguments of.
thread_local bool cast_already = false;

using Stack = torch::jit::Stack;

// A value for as long as this lives.
template <class T>
class Restore {
 public:
  Restore(T& place, T value) : place_(place), before_(std::exchange(place, value)) {}
  ~Restore() { place_ = before_; }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  T& place_;
  T before_;
};

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
      if (unit == nullptr || unit->owner->held(*unit)) return;
      throw StateError("rank " + std::to_string(unit->rank()) + ": " + op.operator_name().name +
                           " would write parameter '" + unit->slot_of(tensor).name +
                           "', and the engine's shards would not see it",
                       "write parameters inside zero::gather");
    });
  }
}

bool runs_backward(const c10::OperatorHandle& op) {
  static const c10::OperatorHandle backward = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_backward", "");
  return op == backward;
}

// torch::load gives a tensor other memory by set_(), whose dtype it does not look at. What a scope holds gets the
// values instead.
bool copy_instead_of_set(const c10::OperatorHandle& op, Stack* stack) {
  static const c10::OperatorHandle set = c10::Dispatcher::singleton().findSchemaOrThrow("aten::set_", "source_Tensor");
  if (op != set) return false;
  const at::Tensor source = stack->back().toTensor(), target = (*stack)[stack->size() - 2].toTensor();
  const Unit* const unit = Unit::of(target.unsafeGetTensorImpl());
  if (unit == nullptr) return false;
  if (target.sizes() != source.sizes())
    throw StateError("rank " + std::to_string(unit->rank()) + ": values of another shape were loaded into parameter '" +
                         unit->slot_of(target).name + "'",
                     "load values of the model's own shapes");
  const Unwatched unwatched;
  const at::NoGradGuard no_grad;
  target.copy_(source);
  torch::jit::pop(*stack);
  return true;
}

// Units of several engines may meet in one operator; each pages its own.
std::vector<std::vector<Unit*>> by_owner(const std::vector<Unit*>& units) {
  std::vector<std::vector<Unit*>> groups;
  for (Unit* unit : units) {
    const auto group = std::find_if(groups.begin(), groups.end(),
                                    [&](const std::vector<Unit*>& g) { return g.front()->owner == unit->owner; });
    if (group == groups.end()) {
      groups.push_back({unit});
    } else {
      group->push_back(unit);
    }
  }
  return groups;
}

void page_in(std::span<Unit* const> units) {
  UnitOwner& owner = *units.front()->owner;
  owner.micro_batch().used();
  owner.page_in(units);
}

// What the fallback does with an operator.
struct Call {
  bool with_units = false;
  bool inside = false;                // it must run with the fallback still watching inside it
  std::optional<Cast> autocast = {};  // under which it runs
  std::optional<Cast> fp32 = {};      // it runs in fp32 instead of under this
  bool rounds = false;                // and its results become this dtype
};

std::optional<Cast> autocast_of(bool with_units) {
  const MicroBatch* const open = MicroBatch::open();
  if (open == nullptr || cast_already) return {};
  return open->autocast(with_units);
}

// How an operator with parameters is computed in a forward in 16 bits.
void cast(const c10::OperatorHandle& op, std::span<c10::IValue> arguments, const UnitSet& units, Call& call) {
  const bool lstm = is_lstm(op), wide = units.wide() || only_wide(op, arguments);
  if (wide || (lstm && !has_lstm(*call.autocast))) {
    widen(op, arguments);
    call.fp32 = std::exchange(call.autocast, std::nullopt);
    call.rounds = !wide;
  } else if (lstm) {
    narrow(arguments, call.autocast->dtype);
  } else if (needs_promotion(op, c10::ArrayRef(arguments.data(), arguments.size()), *call.autocast)) {
    promote(op, arguments);
  }
}

Call without_units(const c10::OperatorHandle& op, std::span<c10::IValue> arguments) {
  Call call{.autocast = autocast_of(false)};
  if (!call.autocast || !only_wide(op, arguments)) return call;
  widen(op, arguments);
  call.fp32 = std::exchange(call.autocast, std::nullopt);
  return call;
}

// Pages in what the operator needs.
Call prepare(const c10::OperatorHandle& op, std::span<c10::IValue> arguments) {
  const c10::ArrayRef<c10::IValue> view(arguments.data(), arguments.size());
  const UnitSet units(view);
  if (units.empty()) return without_units(op, arguments);
  Call call{.with_units = true};
  if (only_views(op, view)) return {.with_units = true, .inside = composite(op)};
  if (writes_unit(op, view)) {
    if (changes_metadata_only(op)) return call;
    refuse_writes(op, view);
  }
  if (Unit* unit = units.only()) {
    page_in(std::span(&unit, 1));
  } else {
    for (const std::vector<Unit*>& group : by_owner(units.all())) page_in(group);
  }
  if (MicroBatch* const open = MicroBatch::open(); open != nullptr && units.frozen_forward()) open->keep_open();
  adjust_lookup(op, arguments);
  call.autocast = autocast_of(true);
  if (call.autocast) cast(op, arguments, units, call);
  return call;
}

void note_projections(AttentionScores& attention, std::span<c10::IValue> arguments) {
  for (const c10::IValue& value : arguments)
    for_each_tensor(value, [&](const c10::TensorImpl* tensor) {
      if (const Unit* const unit = Unit::of(tensor)) attention.uses(unit->slot_of(tensor).name);
    });
}

AttentionScores* attention_here() {
  MicroBatch* const open = MicroBatch::open();
  return open == nullptr ? nullptr : open->attention();
}

// An operator that the program calls, with gradients enabled.
bool of_program_with_gradients() {
  return watched_inside == 0 && at::GradMode::is_enabled();
}

// An evaluation is over when gradients are enabled again, a forward when nothing is left of it.
void begin_and_end(std::span<const c10::IValue> arguments) {
  if (!of_program_with_gradients()) return;
  MicroBatch* const open = MicroBatch::open();
  if (open != nullptr && open->over()) open->end_forward();
  program_functions::before_operator(arguments);
}

// What comes of parameters keeps the forward open as long as a graph holds it.
void note_results(const c10::OperatorHandle& op, const Stack& stack) {
  MicroBatch* const open = MicroBatch::open();
  if (open == nullptr || !at::GradMode::is_enabled()) return;
  const std::size_t results = op.schema().returns().size();
  for (std::size_t i = stack.size() - std::min(results, stack.size()); i < stack.size(); ++i)
    for_each_tensor(stack[i], [open](const c10::TensorImpl* tensor) {
      if (tensor->requires_grad()) open->keep_open_for(*tensor);
    });
}

// Runs the operator with the fallback watching those inside it. Its dispatch keys were computed outside of `call`.
void run_inside(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const Call& call, Stack* stack) {
  const bool casts = call.autocast && op.hasKernelForDispatchKey(call.autocast->key());
  const AutocastScope autocast(casts ? call.autocast : std::nullopt);
  const Restore cast(cast_already, cast_already || casts || call.fp32.has_value());
  const Restore depth(watched_inside, watched_inside + 1);
  keys = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kWatchKey);
  if (casts) keys = keys.add(call.autocast->key());
  op.redispatchBoxed(keys, stack);
}

void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const Call& call, Stack* stack) {
  if (call.inside || runs_backward(op)) return run_inside(op, keys, call, stack);
  const AutocastScope autocast(call.autocast);
  const c10::impl::ExcludeDispatchKeyGuard guard(kWatchKey);
  if (!call.with_units || !run_in_float8(op, stack)) op.callBoxed(stack);
}

void run_in_fp32(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const Call& call, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(call.fp32->key());
  run(op, keys.remove(call.fp32->key()), call, stack);
  if (!call.rounds) return;
  const std::size_t results = op.schema().returns().size();
  narrow(std::span(stack->data() + (stack->size() - results), results), call.fp32->dtype);
}

// All who watched this thread have ended, the last of them on another one.
void stop_if_unwatched() {
  const Watchers* const watchers = OfThread<Watchers>::here();
  if (watchers != nullptr && watchers->count == 0) c10::impl::tls_set_dispatch_key_included(kWatchKey, false);
}

void see(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) try {
  stop_if_unwatched();
  const std::size_t count = op.schema().arguments().size();
  const std::span<c10::IValue> arguments(stack->data() + (stack->size() - count), count);
  begin_and_end(arguments);
  if (note_renormalisation(op, stack)) return;
  const std::optional<Communicator> normalised_over = batch_norm::ranks_of(op, arguments);
  Call call = prepare(op, arguments);
  if (call.with_units && copy_instead_of_set(op, stack)) return;
  if (AttentionScores* const attention = attention_here()) {
    if (call.with_units) note_projections(*attention, arguments);
    attention->before(op, arguments);
  }
  std::optional<Draw> draw;
  if (draws(op)) {
    draw.emplace(op, arguments);
    call.inside = call.inside || draw->inside();
  }
  if (normalised_over) {
    const c10::impl::ExcludeDispatchKeyGuard guard(kWatchKey);
    batch_norm::run(*normalised_over, stack);
  } else if (call.fp32) {
    run_in_fp32(op, keys, call, stack);
  } else {
    run(op, keys, call, stack);
  }
  if (draw) draw->done();
  if (AttentionScores* const attention = attention_here()) attention->after(op, *stack);
  if (call.with_units) note_results(op, *stack);
  if (of_program_with_gradients()) program_functions::behind_operator();
} catch (const c10::OutOfMemoryError& error) {
  if (const MicroBatch* const open = MicroBatch::open()) open->accounts().exhausted(error, "forward");
  throw;
}

}  // namespace

Watch::Watch() : watchers_(OfThread<Watchers>::own()) {
  if (watchers_->count++ == 0) ++watched_threads;
  c10::impl::tls_set_dispatch_key_included(kWatchKey, true);
}

// From another thread, the key stays until that one's next operator.
Watch::~Watch() {
  if (--watchers_->count > 0) return;
  --watched_threads;
  if (watchers_.get() == OfThread<Watchers>::here()) c10::impl::tls_set_dispatch_key_included(kWatchKey, false);
}

}  // namespace zero

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&zero::see>());
}
