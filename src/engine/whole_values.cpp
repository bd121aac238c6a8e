// Values of parameters that ranks have in parts, whole, on every rank.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "backwards/unwatched.h"
#include "base/elements.h"
#include "engine/impl.h"
#include "partition/transitions.h"
#include "zero/error.h"

namespace zero {

// What has no elements may be in none that was adopted.
Unit& Engine::Impl::unit_of(const at::Tensor& parameter, const char* call) const {
  Unit* const unit = Unit::of(parameter.unsafeGetTensorImpl());
  if (unit != nullptr && unit->owner == this) return *unit;
  for (const auto& each : units_)
    if (!each->adopted() &&
        std::ranges::any_of(each->parameters(), [&](const at::Tensor& own) { return own.is_same(parameter); }))
      return *each;
  throw ConfigError(rank_text() + ": " + call + " was given a tensor that is not a parameter of this engine");
}

// What this rank updates of an array in the host's memory that has all of the unit.
View Engine::Impl::updated_of(const Unit& unit, const at::Tensor& whole) const {
  const Held held = held_at_rest(resolved_, State::optimizer, unit.layout(), exchange_.rank());
  const Dtype dtype = accumulation(unit.layout().dtype());
  return {at_element(whole.mutable_data_ptr(), held.begin, dtype), held.count, dtype};
}

// Each rank's part of it, to all ranks. Collective.
void Engine::Impl::gather_updated(const Unit& unit, const at::Tensor& whole) {
  const Held held = held_at_rest(resolved_, State::optimizer, unit.layout(), exchange_.rank());
  if (!held.over) return;
  const View mine = updated_of(unit, whole);
  const View all{whole.mutable_data_ptr(), whole.numel(), mine.dtype};
  exchange_.run({.kind = Exchange::Kind::read,
                 .unit = unit.index(),
                 .count = all.count,
                 .run = [mine, all, over = *held.over](const Groups& groups) { groups.gather(mine, all, over); },
                 .lane = Exchange::Lane::control});
}

// Of units of which more is known than the parameters have, all of it, in the host's memory; else undefined.
// Collective.
std::vector<at::Tensor> Engine::Impl::whole_weights() {
  const Unwatched unwatched;
  std::vector<at::Tensor> all(units_.size());
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = *units_[i];
    if (!unit.adopted() || !updater_.has_wide(unit)) continue;
    all[i] = at::empty({unit.layout().length()}, scalar_type(accumulation(unit.layout().dtype())));
    updater_.read_wide(unit, updated_of(unit, all[i]));
    gather_updated(unit, all[i]);
  }
  return all;
}

at::Tensor Engine::Impl::main_parameter(const at::Tensor& parameter) {
  check_alive();
  Unit& unit = unit_of(parameter, "main_parameter()");
  catch_up("main_parameter()");
  renormalise();
  const Unwatched unwatched;
  at::NoGradGuard no_grad;
  const at::ScalarType wide = scalar_type(accumulation(unit.layout().dtype()));
  if (!unit.adopted()) return at::empty_like(parameter, at::TensorOptions(wide));
  if (!updater_.has_main(unit)) {
    const Pinned pinned(*pager_, unit);
    return parameter.detach().to(wide, /*non_blocking=*/false, /*copy=*/true);
  }
  const at::Tensor flat = at::empty({unit.layout().length()}, at::TensorOptions().dtype(wide));
  updater_.read_main(unit, updated_of(unit, flat));
  gather_updated(unit, flat);
  return unit.part_of(flat, parameter).to(unit.device(), /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace zero
