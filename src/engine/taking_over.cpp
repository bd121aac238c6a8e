// How an engine takes the parameters of its module over, and what memory that needs.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "backwards/unwatched.h"
#include "engine/memory_needs.h"
#include "engine/parameters.h"
#include "gradients/gradients.h"
#include "partition/wire.h"
#include "units/for_unit.h"
#include "zero/error.h"
#include "zero/estimate.h"

namespace zero {
namespace {

constexpr std::int64_t kBlocksOfUnit = 8;  // at most, of a state, and of what is under way at once

std::unique_ptr<TierLoader> loader_of(const Trained& trained, Accounts& accounts) {
  if (!trained.routes().brings()) return nullptr;
  const Tier tier = trained.plan()[State::parameter].tier;
  return std::make_unique<TierLoader>(accounts.store(State::parameter, tier, accounts.lasting()), accounts);
}

// Room for the codes of the largest unit, of all ranks, where parameters travel in any.
Buffer room_for_codes(const Trained& trained, Accounts& accounts) {
  const std::int64_t bytes = wire_room(trained.layout(), trained.resolved());
  return bytes == 0 ? Buffer() : accounts.visible_buffer(Owner::gathered, bytes, at::kByte);
}

std::vector<std::unique_ptr<Unit>> make_units(const Trained& trained, const Inventory& inventory, EngineRanks& ranks,
                                              const Buffer& codes, TierLoader* loader) {
  std::vector<std::unique_ptr<Unit>> units;
  for (const UnitLayout& unit : trained.layout().units()) {
    std::vector<at::Tensor> parameters;
    UnitCuts cuts{ranks.tensor(), {}};
    for (const Slot& slot : unit.slots()) {
      parameters.push_back(inventory.parameters[static_cast<std::size_t>(slot.index)]);
      cuts.slots.push_back(trained.cut(slot.index));
    }
    units.push_back(std::make_unique<Unit>(unit, static_cast<int>(units.size()), trained.routes(), parameters, cuts,
                                           codes, ranks.accounts(), loader));
  }
  return units;
}

std::optional<at::ScalarType> autocast_of(const Plan& plan) {
  const Dtype dtype = plan.compute_dtype();
  return dtype == Dtype::f32 ? std::nullopt : std::optional(scalar_type(dtype));
}

// Parameters that updates write apart from those that are computed with; null where the plan delays none.
std::unique_ptr<DelayedUpdate> delayed_update(const Trained& trained, Accounts& accounts, Updater& updater) {
  if (!trained.plan().delays_update()) return nullptr;
  const Tier computed_in = accounts.device().is_host() ? Tier::device : Tier::host;
  return std::make_unique<DelayedUpdate>(updater, accounts.store(State::parameter, computed_in, accounts.lasting()),
                                         static_cast<int>(trained.layout().units().size()));
}

at::Tensor room_for(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.dtype()).device(tensor.device()));
}

at::Tensor computed(const at::Tensor& deferred) {
  at::Tensor values = room_for(deferred);
  deferred_tensors::compute_into(deferred, values);
  return values;
}

// A host without room for gradients is to say so before training starts. What is taken and given back stays
// reserved. Peers read no errors.
void reserve_room(const Trained& trained, const Estimate& needed, const Accounts& accounts) {
  const Routes& routes = trained.routes();
  std::int64_t bytes = needed.held[Owner::reduction].peak;
  if (!routes.reduces_each()) bytes += needed.held[Owner::gradient].bytes;
  for (const UnitLayout& unit : trained.layout().units())
    if (unit.trainable()) bytes -= routes.error_bytes(unit);
  static_cast<void>(accounts.own_memory(bytes));
}

// Rank 0's values win.
void broadcast(Exchange& exchange, const at::Tensor& values, int unit) {
  const auto bytes = static_cast<std::int64_t>(values.nbytes());
  exchange.broadcast(Exchange::Kind::setup, unit,
                     view_of(values.mutable_data_ptr(), Dtype::u8, 0, bytes, values.device()), 0);
}

}  // namespace

Parameters::Parameters(const Trained& trained, EngineRanks& ranks, Liveness& life, const Inventory& inventory,
                       UnitOwner& owner)
    : trained_(trained),
      ranks_(ranks),
      life_(life),
      codes_(room_for_codes(trained, ranks.accounts())),
      loader_(loader_of(trained, ranks.accounts())),
      units_(make_units(trained, inventory, ranks, codes_, loader_.get())),
      served_{ranks.exchange()},
      gradient_stores_(zero::gradient_stores(trained.resolved(), ranks.accounts(), trained.staying())),
      updater_(trained.layout(), trained.routes(), trained.rules(), ranks.seed(), ranks.exchange(), ranks.accounts(),
               trained.staying(), gradient_stores_, loader_ ? &loader_->store() : nullptr),
      max_norms_(inventory.max_norms, inventory.device),
      micro_batch_(ranks.accounts(), autocast_of(trained.plan()), ranks.seed()),
      taken_(units_) {
  Accounts& accounts = ranks.accounts();
  accounts.explain_by(
      [this](const std::string& what, const char* during) { return needs().exhausted(what, during, way_on()); });
  ranks.exchange().serve_by([this](const MeshGroups& groups, int index, Exchange::Variant variant) {
    unit(index).serve(groups, variant == Exchange::Variant::exact);
  });
  const TierMeter::SetupTraffic apart;
  const Estimate needed = needs().estimate();
  const StateBytes device = needed.on(Tier::device);
  const auto blocks = static_cast<std::int64_t>(units_.size()) * kBlocksOfUnit;
  accounts.set_aside(Accounts::Arena::states, device.parameter + device.optimizer, blocks);
  accounts.explaining_memory("building the engine", [&] { take_over(inventory, owner); });
  accounts.set_aside(Accounts::Arena::gradients, device.gradient, blocks);
  accounts.set_aside(Accounts::Arena::passing, needed.held[Owner::gathered].peak + needed.held[Owner::reduction].peak,
                     blocks);
  pager_ = std::make_unique<Pager>(units_, ranks.exchange(), residency(trained.resolved(), trained.layout()),
                                   units_ahead(trained.resolved()), micro_batch_, ranks.meter());
  renew(Exchange::Kind::setup);
  micro_batch_.add_attention(inventory.projections);
  delayed_ = delayed_update(trained, accounts, updater_);
  reserve_room(trained, needed, accounts);
}

// The peers may be gone: then the units on their way end empty, and a destructor has nobody to tell.
void Parameters::end() noexcept {
  if (delayed_) delayed_->settle();  // it reads gradients
  try {
    for (auto& unit : units_) pager_->wait_for_publication(*unit);
  } catch (...) {
  }
  micro_batch_.end_forward();
}

Parameters::Taken::~Taken() {
  if (units_ == nullptr) return;
  for (auto& unit : *units_) unit->restore();
}

void Parameters::Taken::settle() {
  for (auto& unit : *std::exchange(units_, nullptr)) {
    unit->settle();
    for (const at::Tensor& parameter : unit->parameters()) parameter.mutable_grad().reset();
  }
  for (deferred_tensors::Settling& each : std::exchange(others, {})) each.commit();
}

void Parameters::settle() {
  taken_.settle();
  ranks_.built();
  if (std::ranges::any_of(units_, [](const auto& unit) { return unit->gathers() && !unit->common(); }))
    ranks_.exchange().stand_by();
}

MemoryNeeds Parameters::needs() const {
  return {trained_, ranks_, *this};
}

const char* Parameters::way_on() const {
  if (life_.poison() != nullptr) return "; this engine has to be built again";
  return taken_.settled() ? "; to repeat the step, call discard() first" : "";
}

// By unit: whether all ranks would read its values from the same sources, so that each may read its part.
std::vector<char> Parameters::read_in_parts() {
  std::vector<char> in_parts(units_.size());
  if (std::ranges::none_of(units_, [](const auto& unit) { return unit->gathers(); })) return in_parts;
  std::vector<std::int64_t> mine;
  for (const auto& unit : units_) mine.push_back(unit->sources());
  const std::vector<std::int64_t> all = ranks_.exchange().table(Exchange::Kind::setup, mine);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    in_parts[i] = mine[i] != 0 ? 1 : 0;
    for (std::size_t at = i; at < all.size(); at += units_.size())
      if (all[at] != mine[i]) in_parts[i] = 0;
  }
  return in_parts;
}

// The unit's values as rank 0 has them; `in_part`: as all have them, this rank's part at rest of what is deferred.
Buffer Parameters::values_of(const Unit& unit, bool in_part) {
  Buffer values = unit.flatten(in_part);
  if (!in_part) {
    broadcast(ranks_.exchange(), values.tensor(), unit.index());
    return values;
  }
  for (std::size_t i = 0; i < unit.parameters().size(); ++i) {
    const Slot& slot = unit.layout().slots()[i];
    if (!deferred_tensors::deferred(unit.parameters()[i]))
      broadcast(ranks_.exchange(), values.tensor().narrow(0, slot.begin, slot.numel), unit.index());
  }
  return values;
}

// A rank that could not read its part ends the others' building at the barrier.
void Parameters::take_over(const Inventory& inventory, UnitOwner& owner) {
  const Unwatched unwatched;
  const at::NoGradGuard no_grad;
  const std::vector<char> in_parts = read_in_parts();
  for (auto& unit : units_) {
    unit->owner = &owner;
    if (unit->layout().length() == 0) {
      unit->cast();
      continue;
    }
    Buffer values = values_of(*unit, in_parts[static_cast<std::size_t>(unit->index())] != 0);
    if (unit->layout().trainable()) updater_.states().prepare(*unit, values.tensor().data_ptr());
    for_unit(*unit, "the parameters",
             [&] { unit->adopt(std::move(values), updater_.states().sites().of_parameters()); });
  }
  if (std::ranges::count(in_parts, 1) > 0) ranks_.exchange().barrier(Exchange::Kind::setup).wait();
  for (const Replicated& each : inventory.replicated) {
    const at::Tensor values = copy_of(each.tensor.detach());
    if (ranks_.tensor() != nullptr && ranks_.rank() == 0) ranks_.tensor()->broadcast(values);
    broadcast(ranks_.exchange(), values, -1);
    taken_.others.emplace_back(each.tensor, values);
  }
  for (const at::Tensor& each : inventory.ignored)
    if (deferred_tensors::deferred(each)) taken_.others.emplace_back(each, computed(each.detach()));
}

// Row-major.
at::Tensor Parameters::copy_of(const at::Tensor& tensor) const {
  if (!deferred_tensors::deferred(tensor)) return tensor.clone(at::MemoryFormat::Contiguous);
  return ranks_.rank() == 0 ? computed(tensor) : room_for(tensor);
}

}  // namespace zero
