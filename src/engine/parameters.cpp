#include "engine/parameters.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "backwards/unwatched.h"
#include "base/elements.h"
#include "units/for_unit.h"
#include "zero/error.h"

namespace zero {

namespace {

// What no rank has a part of alone, along the tensor axis too, whose ranks are neighbours.
void take_from(EngineRanks& ranks, const Trained& trained, Unit& unit, int rank) {
  const TensorAxis* const axis = ranks.tensor().get();
  const int places = ranks.places();
  ranks.exchange().broadcast(Exchange::Kind::read, unit.index(), unit.full(), rank / places);
  if (axis == nullptr) return;
  const Unwatched unwatched;
  const at::NoGradGuard no_grad;
  for (int slot = 0; slot < static_cast<int>(unit.parameters().size()); ++slot)
    if (!trained.cut(unit.layout().slot(slot).index)) axis->broadcast(unit.own(slot).detach(), rank % places);
}

}  // namespace

void Parameters::observe(const std::weak_ptr<EngineObserver>& observer) {
  pager_->observe(observer);
  micro_batch_.observe(observer);
}

std::weak_ptr<const void> Parameters::state_valid() {
  if (!state_valid_) state_valid_ = std::make_shared<const int>(0);
  return state_valid_;
}

void Parameters::resume(std::uint64_t seed, std::vector<std::int64_t> updates) {
  updater_.resume(seed, std::move(updates));
  max_norms_.forget();
  micro_batch_.reseed(seed);
}

const at::Tensor& Parameters::at(int index) const {
  const auto [unit, slot] = trained_.layout().at(index);
  return units_[static_cast<std::size_t>(unit)]->parameters()[static_cast<std::size_t>(slot)];
}

// What has no elements may be in none that was adopted.
Unit& Parameters::unit_of(const at::Tensor& parameter, const char* call) const {
  Unit* const unit = Unit::of(parameter.unsafeGetTensorImpl());
  if (unit != nullptr && &unit->accounts() == &ranks_.accounts()) return *unit;
  for (const auto& each : units_)
    if (!each->adopted() &&
        std::ranges::any_of(each->parameters(), [&](const at::Tensor& own) { return own.is_same(parameter); }))
      return *each;
  throw ConfigError(std::string(call) + " was given a tensor that is not a parameter of this engine");
}

void Parameters::require_unchanged() const {
  for (const auto& unit : units_) {
    if (!unit->adopted()) continue;
    for (std::size_t slot = 0; slot < unit->parameters().size(); ++slot)
      if (const std::string fault = unit->fault(static_cast<int>(slot)); !fault.empty())
        throw StateError(fault, "change parameters in place, inside zero::gather");
  }
}

void Parameters::require_no_scope(const char* call) const {
  for (const auto& unit : units_)
    if (pager_->pinned(*unit))
      throw StateError(std::string(call) + " inside a zero::gather of unit '" + unit->layout().name() + "'",
                       "end the scope first");
}

void Parameters::updated(Unit& unit) {
  unit.changed();
  pager_->outdate(unit);
  publish(unit, Exchange::Kind::publish);
}

// Parameters of which each rank updated a part of what it holds.
void Parameters::publish(Unit& unit, Exchange::Kind kind) {
  if (!trained_.routes().publishes()) return;
  ranks_.device().follow_sends();
  const Route route = trained_.routes().publish(unit.layout());
  const View mine = unit.shard(route.from), all = unit.shard();
  const bool part = unit.paged();
  if (!part) unit.suspend();
  Pending arrival =
      ranks_.exchange().submit({kind, unit.index(), all.count,
                                [mine, all, route](const MeshGroups& groups) { groups.carry_out(route, mine, all); }});
  part ? pager_->expect_barrier(std::move(arrival)) : pager_->expect(unit, std::move(arrival));
}

void Parameters::renew(Exchange::Kind kind) {
  if (any(&Unit::common)) pager_->expect_barrier(ranks_.exchange().barrier(kind));
}

bool Parameters::any(bool (Unit::*is)() const) const {
  return std::ranges::any_of(units_, [is](const auto& unit) { return (unit.get()->*is)(); });
}

void Parameters::wait_for_publication() {
  for (auto& unit : units_) pager_->wait_for_publication(*unit);
  pager_->wait_for_barrier();
}

// Before a shared unit is written every rank has its copy, and every rank has written before it is read.
void Parameters::keep(Unit& unit, std::optional<int> from_rank, Written what) {
  Exchange& exchange = ranks_.exchange();
  const Exchange::Changing changing(exchange);
  pager_->outdate_together(unit, /*rewritten=*/what == Written::anything);
  unit.take_back(true);
  invalidate_state();
  const TierMeter::SetupTraffic apart;
  if (from_rank) take_from(ranks_, trained_, unit, *from_rank);
  pager_->meet_in_common(unit);
  {
    const Critical critical(life_, "a gather scope's end failed halfway: some weights are not what was written");
    for_unit(unit, "what was written", [&] { unit.keep_full(updater_.states().sites().of_parameters()); });
    if (delayed_) delayed_->forget(unit);
    updater_.states().adopt(unit);
  }
  pager_->meet_in_common(unit);
}

void Parameters::renormalise() {
  if (max_norms_.empty()) return;
  const auto gather = [this](ConstView mine, View all) {
    ranks_.exchange().run({Exchange::Kind::read, -1, mine.count,
                           [=](const MeshGroups& groups) { groups.along(Axis::data).all_gather(mine, all).wait(); }});
  };
  const std::vector<MaxNorms::Due> due = max_norms_.settle(ranks_.size(), gather);
  const Unwatched unwatched;
  for (const auto& [table, indices] : due) {
    const at::Tensor& parameter = at(table.parameter);
    Unit& unit = *Unit::of(parameter.unsafeGetTensorImpl());
    const Pinned whole(*pager_, unit);
    MaxNorms::renormalise(table, parameter.detach(), indices);
    keep(unit, {}, Written::rows);
  }
}

View Parameters::updated_of(const Unit& unit, const at::Tensor& whole) const {
  const Shard held = trained_.routes().rest(State::optimizer, unit.layout());
  const Dtype dtype = accumulation(unit.layout().dtype());
  return {at_element(whole.mutable_data_ptr(), held.begin, dtype), held.count, dtype};
}

void Parameters::gather_updated(const Unit& unit, const at::Tensor& whole) {
  const View mine = updated_of(unit, whole);
  const Route route = trained_.routes().updated(unit.layout(), mine.dtype);
  if (route.hops.empty()) return;
  const View all{whole.mutable_data_ptr(), whole.numel(), mine.dtype};
  ranks_.exchange().run({.kind = Exchange::Kind::read,
                         .unit = unit.index(),
                         .count = all.count,
                         .run = [mine, all, route](const MeshGroups& groups) { groups.carry_out(route, mine, all); },
                         .lane = Exchange::Lane::control});
}

at::Tensor Parameters::main_parameter(const at::Tensor& parameter) {
  Unit& unit = unit_of(parameter, "main_parameter()");
  const at::ScalarType wide = scalar_type(accumulation(unit.layout().dtype()));
  if (!unit.adopted()) return at::empty_like(parameter, at::TensorOptions(wide));
  if (!updater_.states().has_main(unit)) {
    const Pinned pinned(*pager_, unit);
    return whole(parameter.detach().to(wide, /*non_blocking=*/false, /*copy=*/true));
  }
  const at::Tensor flat = at::empty({unit.layout().length()}, at::TensorOptions().dtype(wide));
  updater_.states().read_main(unit, updated_of(unit, flat));
  gather_updated(unit, flat);
  return unit.part_of(flat, parameter).to(unit.device(), /*non_blocking=*/false, /*copy=*/true);
}

// Of units of which more is known than the parameters have, all of it, in the host's memory; else undefined.
// Collective.
std::vector<at::Tensor> Parameters::whole_weights() {
  const Unwatched unwatched;
  std::vector<at::Tensor> all(units_.size());
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = *units_[i];
    if (!unit.adopted() || !updater_.states().has_wide(unit)) continue;
    all[i] = at::empty({unit.layout().length()}, scalar_type(accumulation(unit.layout().dtype())));
    updater_.states().read_wide(unit, updated_of(unit, all[i]));
    gather_updated(unit, all[i]);
  }
  return all;
}

void Parameters::release(ReleaseAs as, const std::function<void()>& before_end) {
  invalidate_state();
  pager_->drop_bases();
  std::vector<Pinned> whole;
  for (auto& unit : units_)
    if (unit->adopted()) whole.emplace_back(*pager_, *unit);
  std::vector<at::Tensor> weights = as == ReleaseAs::given ? whole_weights() : std::vector<at::Tensor>(units_.size());
  ranks_.exchange().end_standing_by();
  const Critical critical(life_,
                          "release() failed halfway: some parameters are the module's own again and others are not");
  before_end();
  micro_batch_.end_forward();
  std::ranges::for_each(whole, &Pinned::forget);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (as == ReleaseAs::given || units_[i]->cut()) {
      units_[i]->give_back(weights[i], as == ReleaseAs::computed);
    } else if (units_[i]->adopted()) {
      units_[i]->abandon();
    }
    weights[i].reset();
  }
}

}  // namespace zero
