#include "operators/dispatch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "backwards/autocast.h"
#include "backwards/micro_batch.h"
#include "backwards/unwatched.h"
#include "base/lifetimes.h"
#include "base/restore.h"
#include "operators/operator_rule.h"
#include "operators/program_functions.h"

namespace zero {

namespace {

// Each rule is around those behind it: the first sees what the program gives, the last what the operator gets.
constexpr std::array kRules{
    // It needs no values, and notes instead of writing what the next but one would refuse to have written.
    &operator_rules::renormalisation,
    // It knows its layer by tensors that a cast would replace.
    &operator_rules::batch_norm,
    // What stands behind it may use the units' values.
    &operator_rules::unit_arguments,
    // It writes a unit that is there, and needs no casts.
    &operator_rules::set_as_copy,
    // It gives a parameter other values, which are cast then.
    &operator_rules::lookup,
    // It says under which cast the operator runs; the next two, that it does not.
    &operator_rules::autocast,
    &operator_rules::only_fp32,
    &operator_rules::lstm,
    // It changes what none of those casts.
    &operator_rules::promotion,
    // It compares the arguments that the operator gets with the results of others.
    &operator_rules::attention,
    // Nothing behind it refuses a call: numbers are drawn once.
    &operator_rules::random,
    // It may stand anywhere.
    &operator_rules::backward,
    // It multiplies the operands that the operator would get.
    &operator_rules::float8,
};

using Stack = torch::jit::Stack;

std::span<c10::IValue> uppermost(Stack* stack, std::size_t count) {
  return {stack->data() + (stack->size() - count), count};
}

// How many operators the fallback watches inside of.
thread_local int watched_inside = 0;
// Inside an operator that autocast has cast the arguments of.
thread_local bool cast_already = false;

// The rules that concern a call, as bits: those of its operator, of which some apply to other calls.
class Rules {
 public:
  static const Rules& all() {
    static const Rules rules;
    return rules;
  }

  std::uint32_t of(const c10::OperatorHandle& op, unsigned when) const {
    const auto named = named_.find(op);
    return (named == named_.end() ? unnamed_ : named->second) & applying_[when];
  }

 private:
  Rules();

  std::unordered_map<c10::OperatorHandle, std::uint32_t> named_;
  std::uint32_t unnamed_ = 0;
  std::array<std::uint32_t, 8> applying_{};  // by what holds of a call: OperatorRule::When, added up
};

Rules::Rules() {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  std::unordered_map<std::string_view, std::uint32_t> overloaded;
  for (std::size_t i = 0; i < kRules.size(); ++i) {
    const OperatorRule& rule = *kRules[i];
    const std::uint32_t bit = std::uint32_t{1} << i;
    for (unsigned when = 0; when < applying_.size(); ++when)
      if (rule.when == OperatorRule::always || (rule.when & when) != 0) applying_[when] |= bit;
    if (rule.names.empty()) unnamed_ |= bit;
    for (const auto& [name, overload] : rule.names)
      (std::string_view(overload) == OperatorName::kAny ? overloaded[name]
                                                        : named_[dispatcher.findSchemaOrThrow(name, overload)]) |= bit;
  }
  for (const c10::OperatorName& name : dispatcher.getAllOpNames())
    if (const auto found = overloaded.find(name.name); found != overloaded.end())
      if (const auto op = dispatcher.findSchema(name)) named_[*op] |= found->second;
  for (auto& [op, bits] : named_) bits |= unnamed_;
}

std::uint32_t rules_of(const c10::OperatorHandle& op, const UnitSet& units) {
  const auto casts = [](const MicroBatch* computing) { return computing != nullptr && computing->cast(); };
  const bool in_16_bits = !units.empty() || casts(MicroBatch::computing());
  return Rules::all().of(op, (units.empty() ? 0U : OperatorRule::with_units) |
                                 (in_16_bits ? OperatorRule::in_16_bits : 0U) |
                                 (op.hasTag(at::Tag::nondeterministic_seeded) ? OperatorRule::drawing : 0U));
}

// An operator that the program calls, with gradients enabled.
bool of_program_with_gradients() {
  return watched_inside == 0 && at::GradMode::is_enabled();
}

// An evaluation is over when gradients are enabled again, a forward when nothing is left of it.
void begin_and_end(std::span<const c10::IValue> arguments) {
  MicroBatch* const open = MicroBatch::open();
  if (open != nullptr && open->over()) open->end_forward();
  program_functions::before_operator(arguments);
}

// Runs the operator with the fallback watching those inside it. Its dispatch keys were computed outside of `call`.
void run_inside(const OperatorCall& call) {
  const bool casts = call.autocast && call.op.hasKernelForDispatchKey(call.autocast->key());
  const AutocastScope autocast(casts ? call.autocast : std::nullopt);
  const Restore cast(cast_already, cast_already || casts || call.fp32.has_value());
  const Restore depth(watched_inside, watched_inside + 1);
  c10::DispatchKeySet keys = call.keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kWatchKey);
  if (call.fp32) keys = keys.remove(call.fp32->key());
  if (casts) keys = keys.add(call.autocast->key());
  call.op.redispatchBoxed(keys, call.stack);
}

void run(const OperatorCall& call) {
  if (call.inside) return run_inside(call);
  const AutocastScope autocast(call.autocast);
  const c10::impl::ExcludeDispatchKeyGuard guard(kWatchKey);
  if (call.instead) return call.instead(call.stack);
  call.op.callBoxed(call.stack);
}

void run_in_fp32(const OperatorCall& call) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(call.fp32->key());
  run(call);
}

// The operators that backward consists of are to be seen.
void watch_inside(OperatorCall& call) {
  call.inside = true;
  call.proceed();
}

constexpr auto kBackward = std::to_array<OperatorName>({{"aten::_backward"}});

void see(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) try {
  SeesThread<kWatchKey>::stop_if_none();
  const bool of_program = of_program_with_gradients();
  if (of_program) begin_and_end(uppermost(stack, op.schema().arguments().size()));
  OperatorCall(op, keys, stack).proceed();
  if (of_program) program_functions::behind_operator();
} catch (const c10::OutOfMemoryError& error) {
  if (const MicroBatch* const open = MicroBatch::open()) open->accounts().exhausted(error, "forward");
  throw;
}

}  // namespace

constexpr OperatorRule operator_rules::backward{kBackward, OperatorRule::always, watch_inside};

OperatorCall::OperatorCall(const c10::OperatorHandle& called, c10::DispatchKeySet its_keys, Stack* with)
    : op(called),
      keys(its_keys),
      stack(with),
      arguments(uppermost(stack, op.schema().arguments().size())),
      units(arguments),
      rules(rules_of(op, units)),
      within_cast(cast_already) {}

void OperatorCall::proceed() {
  if (rules == 0) return fp32 ? run_in_fp32(*this) : run(*this);
  const int next = std::countr_zero(rules);
  rules &= rules - 1;
  kRules[static_cast<std::size_t>(next)]->around(*this);
}

std::span<c10::IValue> OperatorCall::results() const {
  return uppermost(stack, std::min(op.schema().returns().size(), stack->size()));
}

Watch::Watch() {
  if (sees_.first()) ++watched_threads;
  program_functions::behind_operator();
}

Watch::~Watch() {
  if (sees_.last()) --watched_threads;
}

}  // namespace zero

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&zero::see>());
}
