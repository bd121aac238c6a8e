// Units among the arguments of an operator: it reads their values, and writes them where a scope holds them.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "backwards/micro_batch.h"
#include "backwards/unwatched.h"
#include "operators/operator_rule.h"
#include "operators/program_functions.h"
#include "zero/error.h"

namespace zero {
namespace {

bool any_cut(const c10::IValue& value) {
  bool any = false;
  for_each_tensor(value, [&](const c10::TensorImpl* tensor) { any = any || sharded::is_sharded(tensor); });
  return any;
}

// True when the operator only makes views of the units: it needs no values. Of a parameter that is cut over a tensor
// axis a view may be a copy.
bool only_views(const OperatorCall& call) {
  const auto& formal = call.op.schema().arguments();
  for (std::size_t i = 0; i < call.arguments.size(); ++i)
    if (has_unit(call.arguments[i]) &&
        (formal[i].alias_info() == nullptr || writes(call.op, i) || any_cut(call.arguments[i])))
      return false;
  return true;
}

bool writes_unit(const OperatorCall& call) {
  for (std::size_t i = 0; i < call.arguments.size(); ++i)
    if (writes(call.op, i) && has_unit(call.arguments[i])) return true;
  return false;
}

bool changes_metadata_only(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::requires_grad_" || name == "aten::retain_grad" || name == "aten::detach_";
}

void refuse_writes(const OperatorCall& call) {
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    if (!writes(call.op, i)) continue;
    for_each_tensor(call.arguments[i], [&](const c10::TensorImpl* tensor) {
      const Unit* unit = Unit::of(tensor);
      if (unit == nullptr || unit->owner->held(*unit)) return;
      throw StateError("rank " + std::to_string(unit->rank()) + ": " + call.op.operator_name().name +
                           " would write parameter '" + unit->slot_of(tensor).name +
                           "', and the engine's shards would not see it",
                       "write parameters inside zero::gather");
    });
  }
}

bool needs_values(OperatorCall& call) {
  if (only_views(call)) {
    call.inside = composite(call.op);
    return false;
  }
  if (!writes_unit(call)) return true;
  if (changes_metadata_only(call.op)) return false;
  refuse_writes(call);
  return true;
}

void page_in(std::span<Unit* const> units) {
  UnitOwner& owner = *units.front()->owner;
  owner.micro_batch().used(program_functions::inside());
  owner.page_in(units);
}

void page_in(const UnitSet& units) {
  if (Unit* unit = units.only()) {
    page_in(std::span(&unit, 1));
  } else {
    for (const std::vector<Unit*>& group : by_owner(units.all())) page_in(group);
  }
  if (MicroBatch* const open = MicroBatch::open(); open != nullptr && units.frozen_forward()) open->keep_open();
}

// What comes of parameters keeps the forward open as long as a graph holds it.
void note_results(const OperatorCall& call) {
  MicroBatch* const open = MicroBatch::open();
  if (open == nullptr || !at::GradMode::is_enabled()) return;
  for (const c10::IValue& value : call.results())
    for_each_tensor(value, [open](const c10::TensorImpl* tensor) {
      if (tensor->requires_grad()) open->keep_open_for(*tensor);
    });
}

void with_values(OperatorCall& call) {
  call.takes_values = needs_values(call);
  if (call.takes_values) page_in(call.units);
  call.proceed();
  note_results(call);
}

// torch::load gives a tensor other memory by set_(), whose dtype it does not look at. What a scope holds gets the
// values instead.
constexpr auto kSet = std::to_array<OperatorName>({{"aten::set_", "source_Tensor"}});

void copy_instead(OperatorCall& call) {
  const at::Tensor target = call.arguments[0].toTensor(), source = call.arguments[1].toTensor();
  const Unit* const unit = Unit::of(target.unsafeGetTensorImpl());
  if (unit == nullptr) return call.proceed();
  if (target.sizes() != source.sizes())
    throw StateError("rank " + std::to_string(unit->rank()) + ": values of another shape were loaded into parameter '" +
                         unit->slot_of(target).name + "'",
                     "load values of the model's own shapes");
  const Unwatched unwatched;
  const at::NoGradGuard no_grad;
  target.copy_(source);
  torch::jit::pop(*call.stack);
}

}  // namespace

constexpr OperatorRule operator_rules::unit_arguments{.when = OperatorRule::with_units, .around = with_values};
constexpr OperatorRule operator_rules::set_as_copy{kSet, OperatorRule::with_units, copy_instead};

}  // namespace zero
