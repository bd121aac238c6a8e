#include "operators/parameters_again.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "operators/operands.h"

namespace zero {

void UnitsAgain::page_in(std::span<const c10::IValue> arguments) {
  for (const std::vector<Unit*>& group : by_owner(UnitSet(arguments).all())) group.front()->owner->page_in(group);
}

std::optional<std::vector<int>> UnitsAgain::units(std::span<const c10::IValue> arguments) {
  std::vector<int> gathered;
  for (Unit* const unit : UnitSet(arguments).all()) {
    if (unit->owner != &owner_) return {};
    if (unit->paged()) gathered.push_back(unit->index());
  }
  return gathered;
}

}  // namespace zero
