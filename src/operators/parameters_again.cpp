#include "operators/parameters_again.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "backwards/running_backward.h"
#include "operators/operands.h"

namespace zero {
namespace {

// On a device streams go by the order of the host's code, which several engines' exchanges would change.
bool gathers_out_of_turn(const Unit& unit) {
  if (unit.device().is_cpu()) return true;
  std::size_t engines = 0;
  with_engines_here([&](const auto& all) { engines = all.size(); });
  return engines <= 1;
}

}  // namespace

void UnitsAgain::page_in(std::span<const c10::IValue> arguments) {
  for (const std::vector<Unit*>& group : by_owner(UnitSet(arguments).all())) group.front()->owner->page_in(group);
}

std::optional<std::vector<int>> UnitsAgain::units(std::span<const c10::IValue> arguments) {
  std::vector<int> gathered;
  const Unit* gathered_of = nullptr;
  for (Unit* const unit : UnitSet(arguments).all()) {
    if (unit->owner != &owner_) return {};
    if (!unit->paged()) continue;
    gathered.push_back(unit->index());
    gathered_of = unit;
  }
  if (!gathered.empty() && !gathers_out_of_turn(*gathered_of)) return {};
  return gathered;
}

}  // namespace zero
