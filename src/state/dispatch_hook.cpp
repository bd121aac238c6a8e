#include "state/dispatch_hook.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/of_thread.h"
#include "state/autocast.h"
#include "state/batch_norm.h"
#include "state/float8_linear.h"
#include "state/lstm.h"
#include "state/max_norms.h"
#include "state/micro_batch.h"
#include "state/operands.h"
#include "state/running_backward.h"
#include "zero/error.h"

namespace zero {

struct dispatch_hook::Watchers {
  std::atomic<int> count = 0;
};

namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

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

bool random(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

// Where an operator computes: on the device of its first tensor, else on the one that it is given.
at::DeviceType device_of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  std::optional<at::DeviceType> found;
  for (const c10::IValue& value : arguments)
    for_each_tensor(value, [&](const c10::TensorImpl* tensor) {
      if (!found && tensor != c10::UndefinedTensorImpl::singleton()) found = tensor->device_type();
    });
  const auto& formal = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size() && !found; ++i)
    if (formal[i].name() == "device" && arguments[i].isDevice()) found = arguments[i].toDevice().type();
  return found.value_or(at::kCPU);
}

// The default generator of a device has the state of another as long as this lives, which goes on from it.
class InsteadOfDefault {
 public:
  explicit InsteadOfDefault(at::Generator& generator)
      : generator_(generator),
        default_(at::globalContext().defaultGenerator(generator.device())),
        before_(default_.get_state()) {
    default_.set_state(generator_.get_state());
  }
  ~InsteadOfDefault() {
    generator_.set_state(default_.get_state());
    default_.set_state(before_);
  }
  InsteadOfDefault(const InsteadOfDefault&) = delete;
  InsteadOfDefault& operator=(const InsteadOfDefault&) = delete;

 private:
  at::Generator& generator_;
  at::Generator default_;
  at::Tensor before_;
};

// In a micro-batch, random operators draw from the engine's generator: they are given it, or, where they take none, as
// some on devices do, it is returned, to be there in place of the default one.
at::Generator* give_generator(const c10::OperatorHandle& op, std::span<c10::IValue> arguments) {
  const at::DeviceType device = device_of(op, arguments);
  at::Generator* const generator = MicroBatch::open()->generator(device);
  if (generator == nullptr) return nullptr;
  const auto& formal = op.schema().arguments();
  bool takes_one = device == at::kCPU || composite(op);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (formal[i].name() != "generator") continue;
    takes_one = true;
    if (arguments[i].isNone()) arguments[i] = *generator;
  }
  return takes_one ? nullptr : generator;
}

bool draws_here(const c10::OperatorHandle& op) {
  return MicroBatch::open() != nullptr && at::GradMode::is_enabled() && random(op);
}

// Whether it is asked to draw nothing, as dropout is in evaluation.
bool draws_nothing(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  const auto& formal = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = formal[i].name();
    const bool share = name == "p" || name == "dropout" || name == "dropout_p";
    if (share && arguments[i].isDouble() && arguments[i].toDouble() == 0) return true;
    if ((name == "train" || name == "training") && arguments[i].isBool() && !arguments[i].toBool()) return true;
  }
  return false;
}

void note_draw(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  if (at::SavedTensorDefaultHooks::get_tls_state().stack.empty() || draws_nothing(op, arguments)) return;
  MicroBatch::open()->draw_under_hooks();
}

// A forward inside backward recomputes activations; autograd disables gradients there. Whoever has kept the state of
// the default generator for it, from which the engine did not draw, would draw other numbers.
void refuse_other_numbers(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  const RunningBackward* const running = RunningBackward::current();
  if (running == nullptr || !running->drawn() || !at::GradMode::is_enabled()) return;
  if (!random(op) || draws_nothing(op, arguments)) return;
  throw StateError(op.operator_name().name +
                       " draws random numbers in a forward inside backward, which would not be those of the forward "
                       "whose activations it recomputes",
                   "checkpoint only what draws none: set dropout to 0 there, or keep these activations");
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
  const dispatch_hook::Off off;
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
  std::optional<Cast> rounds = {};    // it runs in fp32, without autocast, and its results become this dtype
};

std::optional<Cast> autocast_of(bool with_units) {
  const MicroBatch* const open = MicroBatch::open();
  if (open == nullptr || cast_already) return {};
  return open->autocast(with_units);
}

// Pages in what the operator needs.
Call prepare(const c10::OperatorHandle& op, std::span<c10::IValue> arguments) {
  const c10::ArrayRef<c10::IValue> view(arguments.data(), arguments.size());
  const UnitSet units(view);
  if (units.empty()) return {.autocast = autocast_of(false)};
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
  if (!call.autocast) return call;
  if (is_lstm(op)) {
    if (has_lstm(*call.autocast)) {
      narrow(arguments, call.autocast->dtype);
    } else {
      widen(arguments);
      call.rounds = std::exchange(call.autocast, std::nullopt);
    }
  } else if (needs_promotion(op, view, *call.autocast)) {
    promote(op, arguments);
  }
  return call;
}

// An evaluation is over when gradients are enabled again, a forward when nothing is left of it.
void end_what_is_over() {
  MicroBatch* const open = MicroBatch::open();
  if (open != nullptr && watched_inside == 0 && at::GradMode::is_enabled() && open->over()) open->end_forward();
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
  const Restore cast(cast_already, cast_already || casts || call.rounds.has_value());
  const Restore depth(watched_inside, watched_inside + 1);
  keys = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  if (casts) keys = keys.add(call.autocast->key());
  op.redispatchBoxed(keys, stack);
}

void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const Call& call, Stack* stack) {
  if (call.inside || runs_backward(op)) return run_inside(op, keys, call, stack);
  const AutocastScope autocast(call.autocast);
  const c10::impl::ExcludeDispatchKeyGuard guard(kKey);
  if (!call.with_units || !run_in_float8(op, stack)) op.callBoxed(stack);
}

void run_in_fp32(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const Call& call, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(call.rounds->key());
  run(op, keys.remove(call.rounds->key()), call, stack);
  const std::size_t results = op.schema().returns().size();
  narrow(std::span(stack->data() + (stack->size() - results), results), call.rounds->dtype);
}

// All who watched this thread have ended, the last of them on another one.
void stop_if_unwatched() {
  const dispatch_hook::Watchers* const watchers = OfThread<dispatch_hook::Watchers>::here();
  if (watchers != nullptr && watchers->count == 0) c10::impl::tls_set_dispatch_key_included(kKey, false);
}

void see(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) try {
  stop_if_unwatched();
  const std::size_t count = op.schema().arguments().size();
  const std::span<c10::IValue> arguments(stack->data() + (stack->size() - count), count);
  end_what_is_over();
  if (note_renormalisation(op, stack)) return;
  const std::optional<Communicator> normalised_over = batch_norm::ranks_of(op, arguments);
  Call call = prepare(op, arguments);
  if (call.with_units && copy_instead_of_set(op, stack)) return;
  std::optional<InsteadOfDefault> instead;
  refuse_other_numbers(op, arguments);
  if (draws_here(op)) {
    note_draw(op, arguments);
    if (at::Generator* const generator = give_generator(op, arguments)) {
      instead.emplace(*generator);  // what the operator consists of draws there too
    } else {
      call.inside = true;
    }
  }
  if (normalised_over) {
    const c10::impl::ExcludeDispatchKeyGuard guard(kKey);
    batch_norm::run(*normalised_over, stack);
  } else if (call.rounds) {
    run_in_fp32(op, keys, call, stack);
  } else {
    run(op, keys, call, stack);
  }
  if (call.with_units) note_results(op, *stack);
} catch (const c10::OutOfMemoryError& error) {
  if (const MicroBatch* const open = MicroBatch::open()) open->accounts().exhausted(error, "forward");
  throw;
}

}  // namespace

namespace dispatch_hook {

Off::Off() : excluded_before_(c10::impl::tls_is_dispatch_key_excluded(kKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kKey, true);
}

Off::~Off() {
  c10::impl::tls_set_dispatch_key_excluded(kKey, excluded_before_);
}

Watch::Watch() : watchers_(OfThread<Watchers>::own()) {
  ++watchers_->count;
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

// From another thread, the key stays until that one's next operator.
Watch::~Watch() {
  if (--watchers_->count == 0 && watchers_.get() == OfThread<Watchers>::here())
    c10::impl::tls_set_dispatch_key_included(kKey, false);
}

}  // namespace dispatch_hook
}  // namespace zero

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&zero::see>());
}
