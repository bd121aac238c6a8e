#include "engine/impl.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "backwards/program_backward.h"
#include "base/random.h"
#include "comm/keyed_split.h"
#include "engine/engine_optimizer.h"
#include "engine/same_on_ranks.h"
#include "engine/tiers.h"
#include "partition/slices.h"
#include "partition/staying.h"
#include "partition/transitions.h"
#include "units/for_unit.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::int64_t kBlocksOfUnit = 8;  // at most, of a state, and of what is under way at once

// A group of the engine's own, so that its prefetches never mix with the program's collectives, or another engine's.
Groups own_groups(const Mesh& mesh, const std::vector<std::string>& lines) {
  const Communicator& all = mesh.world().communicator();
  if (all.size() == 1) return {all, mesh.shape()};
  const Communicator own = split_by_key(
      all, {agreement_key(lines), [&lines](const Communicator& group) { require_agreement(group, lines); }});
  return {own, mesh.shape()};
}

// Where the engine computes in the host's memory one group carries both.
Groups data_groups(const Groups& groups, Device& device) {
  return device.is_host() ? groups : groups.on_device(device);
}

std::vector<std::unique_ptr<Unit>> make_units(const Layout& layout, const Inventory& inventory, const Plan& plan,
                                              const GatherWire& wire, int rank, Accounts& accounts, Bringer* bringer) {
  std::vector<std::unique_ptr<Unit>> units;
  for (const UnitLayout& unit : layout.units()) {
    std::vector<at::Tensor> parameters;
    for (const Slot& slot : unit.slots())
      parameters.push_back(inventory.parameters[static_cast<std::size_t>(slot.index)]);
    units.push_back(
        std::make_unique<Unit>(unit, static_cast<int>(units.size()), rank, plan, parameters, wire, accounts, bringer));
  }
  return units;
}

std::vector<std::pair<std::string, at::Tensor>> named_parameters(const Inventory& inventory) {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (std::size_t i = 0; i < inventory.specs.size(); ++i)
    named.emplace_back(inventory.specs[i].name, inventory.parameters[i]);
  return named;
}

std::optional<at::ScalarType> autocast_of(const Plan& plan) {
  const Dtype dtype = plan.compute_dtype();
  return dtype == Dtype::f32 ? std::nullopt : std::optional(scalar_type(dtype));
}

// Puts a module's parameters back as they were, unless the engine is built.
class Undo {
 public:
  explicit Undo(std::vector<std::unique_ptr<Unit>>& units) : units_(&units) {}
  ~Undo() {
    if (units_ == nullptr) return;
    for (auto& unit : *units_) unit->restore();
  }
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  void commit() {
    for (auto& unit : *std::exchange(units_, nullptr)) {
      unit->settle();
      for (const at::Tensor& parameter : unit->parameters()) parameter.mutable_grad().reset();
    }
  }

 private:
  std::vector<std::unique_ptr<Unit>>* units_;
};

LossScaler scaler_of(const Plan& plan, const Options& options) {
  const bool narrow = plan.compute_dtype() == Dtype::f16 || plan.reduction() == Dtype::f16;
  const LossScale usual = narrow ? LossScale{} : LossScale::fixed(1);
  return LossScaler(options.loss_scale.value_or(usual));
}

}  // namespace

Engine::Impl::Impl(Inventory inventory, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer, Options options)
    : plan_(plan),
      resolved_(plan.on(mesh.shape())),
      options_(with_tiers(plan_, std::move(options), inventory.device)),
      seat_(mesh.world().take_seat()),
      optimizer_given_(optimizer),
      lr_(learning_rate(optimizer)),
      infos_(std::move(inventory.infos)),
      rules_(parameter_rules(optimizer, options_.groups, infos_)),
      module_(inventory.module, named_parameters(inventory), options_.ignored),
      replicated_(inventory.replicated),
      tiles_(std::move(inventory.tiles)),
      layout_(inventory.specs, mesh.shape(), slices_of(plan, rules_)),
      meter_(std::make_shared<TrafficMeter>()),
      setup_meter_(std::make_shared<TrafficMeter>()),
      groups_(own_groups(mesh, description_of(inventory))),
      seed_(seed()),
      accounts_(inventory.device, groups_.along(Axis::shard), groups_.along(movement(resolved_).within), options_.disk),
      data_groups_(data_groups(groups_, accounts_.device())),
      wire_(layout_, resolved_, accounts_),
      bringer_(
          movement(resolved_).brings
              ? std::make_unique<Bringer>(
                    accounts_.store(State::parameter, plan_[State::parameter].tier, accounts_.lasting()), accounts_)
              : nullptr),
      units_(make_units(layout_, inventory, resolved_, wire_, groups_.rank(), accounts_, bringer_.get())),
      exchange_(
          accounts_.device(), {lanes(meter_), lanes(setup_meter_), groups_, movement(resolved_).within},
          [this](const Groups& groups, int unit, Exchange::Variant variant) {
            units_[static_cast<std::size_t>(unit)]->serve(groups, variant == Exchange::Variant::exact);
          },
          [this](int unit) { return layout_.units()[static_cast<std::size_t>(unit)].name(); }),
      sums_(accounts_.device(), accounts_.where(), plan_.accumulate(),
            plan_.float8() ? std::int64_t{2} * static_cast<std::int64_t>(infos_.size()) : 0),
      float8_(float8_linears()),
      staying_(staying(resolved_, layout_, rules_)),
      gradient_stores_(gradient_stores(resolved_, accounts_, staying_)),
      updater_(layout_, resolved_, rules_, seed_, exchange_, accounts_, staying_, gradient_stores_,
               bringer_ ? &bringer_->store() : nullptr),
      scaler_(scaler_of(plan_, options_)),
      max_norms_(inventory.max_norms, inventory.device),
      micro_batch_(accounts_, autocast_of(plan_), seed_) {
  if (!(options_.clip >= 0)) throw ConfigError("clip must be a number that is not negative");
  accounts_.explain_by([this](const std::string& what, const char* during) { return out_of_memory(what, during); });
  agree(inventory);
  const TierMeter::Apart apart;
  Undo undo(units_);
  const Estimate needed = estimate();
  const StateBytes device = needed.on(Tier::device);
  const auto blocks = static_cast<std::int64_t>(units_.size()) * kBlocksOfUnit;
  accounts_.set_aside(Accounts::Arena::states, device.parameter + device.optimizer, blocks);
  std::vector<deferred_tensors::Settling> buffers =
      accounts_.explaining_memory("building the engine", [&] { return adopt_units(inventory); });
  accounts_.set_aside(Accounts::Arena::gradients, device.gradient, blocks);
  accounts_.set_aside(Accounts::Arena::passing, needed.gathered + needed.reduction, blocks);
  pager_ = std::make_unique<Pager>(units_, exchange_, residency(resolved_, layout_), micro_batch_, meter_);
  if (float8_) float8_->set_loss_scale(scaler_.value());
  renew(Exchange::Kind::setup);
  gradients_ = std::make_unique<Gradients>(units_, exchange_, resolved_, accounts_, gradient_stores_);
  gradients_->on_arrival_from_outside(*this, joins_others(), [this] { join_backward(); });
  micro_batch_.add_attention(inventory.projections);
  micro_batch_.before_seeding([this] { number_forward(); });
  micro_batch_.next(number_of(slot()), taken());
  if (plan_.delays_update()) delay_updates();
  reserve_room(needed);
  undo.commit();
  for (deferred_tensors::Settling& buffer : buffers) buffer.commit();
  building_ = accounts_.snapshot();
  accounts_.reset_peaks();
  accounts_.device().trim();
  watch_.emplace();
  program_backward::watch();
  if (std::ranges::any_of(units_, [](const auto& unit) { return unit->gathers() && !unit->common(); }))
    exchange_.stand_by();
}

c10::intrusive_ptr<Float8Linears> Engine::Impl::float8_linears() const {
  if (!plan_.float8()) return {};
  const Float8& recipe = options_.float8;
  if (!recipe.takes || recipe.history < 1)
    throw ConfigError("float8 needs a function `takes` and a history of 1 step or more");
  std::vector<char> taken(infos_.size());
  for (const auto& unit : units_)
    for (const Slot& slot : unit->layout().slots()) {
      const auto i = static_cast<std::size_t>(slot.index);
      if (!recipe.takes(infos_[i]) || unit->layout().dtype() != Dtype::bf16) continue;
      if (infos_[i].shape.size() != 2)
        throw ConfigError("float8 takes parameter '" + infos_[i].name + "', which is not a matrix");
      taken[i] = 1;
    }
  if (std::ranges::none_of(taken, [](char each) { return each != 0; }))
    throw ConfigError("float8 takes no parameter of the model", "choose them by Options::float8.takes, or use bf16");
  return c10::make_intrusive<Float8Linears>(recipe, std::move(taken), accounts_.device(), sums_.magnitudes());
}

// A parameter is multiplied with by other operators than those that are computed in FP8.
void Engine::Impl::check_float8() const {
  if (!float8_) return;
  for (const auto& unit : units_)
    for (std::size_t slot = 0; slot < unit->layout().slots().size(); ++slot) {
      const Slot& place = unit->layout().slots()[slot];
      if (float8_->missed(place.index) && gradients_->arrived(unit->index(), static_cast<int>(slot)))
        throw StateError(
            rank_text() + ": parameter '" + place.name + "' is to be computed with in FP8, but no linear layer did",
            "leave it out by Options::float8.takes, or its layer's bias by Options::full_precision");
    }
}

// A host without room for gradients is to say so before training starts. What is taken and given back stays
// reserved.
void Engine::Impl::reserve_room(const Estimate& needed) const {
  const bool partial = !movement(resolved_).reduces_each;
  static_cast<void>(accounts_.own_memory((partial ? needed.on(Tier::device).gradient : 0) + needed.reduction));
}

Engine::Impl::~Impl() {
  hears_.reset();
  watch_.reset();
  try {
    for (auto& unit : units_) pager_->settle_published(*unit);
  } catch (...) {
    // The peers are gone: the units on their way end empty. A destructor has nobody to tell.
  }
  micro_batch_.end_forward();
}

// The one that was given, else by rank 0's seat: engines side by side are not to draw the same numbers.
std::uint64_t Engine::Impl::seed() const {
  std::int64_t seat = *seat_;
  if (groups_.size() > 1) setup_group().broadcast({&seat, 1, Dtype::i64}, 0).wait();
  return options_.seed.value_or(seat == 0 ? 0 : derived(0, static_cast<std::uint64_t>(seat)));
}

Exchange::Lanes Engine::Impl::lanes(const std::shared_ptr<TrafficMeter>& meter) const {
  const Groups control = groups_.metered_by(meter);
  return {control, accounts_.device().is_host() ? control : data_groups_.metered_by(meter), meter};
}

// All ranks, before there is an exchange.
Communicator Engine::Impl::setup_group() const {
  return groups_.metered_by(setup_meter_).along(Axis::data);
}

std::vector<std::string> Engine::Impl::description_of(const Inventory& inventory) const {
  std::vector<std::string> lines = description(plan_, inventory, infos_, rules_, options_);
  const std::string kind = c10::DeviceTypeName(inventory.device.type(), /*lower_case=*/true);
  lines.insert(lines.begin() + 1, {"a mesh of " + layout_.mesh().text(), "parameters on devices of kind " + kind});
  return lines;
}

void Engine::Impl::agree(const Inventory& inventory) const {
  require_agreement(setup_group(), description_of(inventory));
}

void Engine::Impl::check_alive() const {
  if (broken_ != nullptr)
    throw StateError(rank_text() + ": " + broken_, "end the engine, and start again from what was saved");
  if (released_) throw StateError("the engine has ended by release()", "build a new engine to train on");
}

void Engine::Impl::check_parameters() const {
  for (const auto& unit : units_) {
    if (!unit->adopted()) continue;
    for (std::size_t slot = 0; slot < unit->parameters().size(); ++slot)
      if (const std::string fault = unit->fault(static_cast<int>(slot)); !fault.empty())
        throw StateError(rank_text() + ": " + fault, "change parameters in place, inside zero::gather");
  }
}

// Against replaced parameters, of which a backward would not tell.
void Engine::Impl::check_module() {
  const std::vector<std::string> changes = module_.changes();
  if (changes.empty()) return;
  std::string text = changes.size() == 1 ? changes.front() : "the model has changed:";
  for (const std::string& change : changes)
    if (changes.size() > 1) text += "\n  - " + change;
  throw StateError(rank_text() + ": " + text,
                   "copy values into a parameter, inside zero::gather; build a new engine for other layers; let "
                   "Options::ignored take what the program adds for itself");
}

void Engine::Impl::check_not_gathered(const char* call) const {
  for (const auto& unit : units_)
    if (pager_->pinned(*unit))
      throw StateError(rank_text() + ": " + call + " inside a zero::gather of unit '" + unit->layout().name() + "'",
                       "end the scope first");
}

void Engine::Impl::release(ReleaseAs as) {
  check_alive();
  check_module();
  check_idle("release()");
  check_not_gathered("release()");
  catch_up("release()");
  renormalise();
  told_.reset();
  std::vector<Pinned> whole;
  for (auto& unit : units_)
    if (unit->adopted()) whole.emplace_back(*pager_, *unit);
  std::vector<at::Tensor> weights = as == ReleaseAs::given ? whole_weights() : std::vector<at::Tensor>(units_.size());
  exchange_.end_standing_by();
  broken_ = "release() failed halfway: some parameters are the module's own again and others are not";
  gradients_.reset();
  micro_batch_.end_forward();
  std::ranges::for_each(whole, &Pinned::forget);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (as == ReleaseAs::given) {
      units_[i]->give_back(weights[i]);
    } else if (units_[i]->adopted()) {
      units_[i]->abandon();
    }
    weights[i].reset();
  }
  broken_ = nullptr;
  watch_.reset();
  released_ = true;
}

void Engine::Impl::observe(const std::weak_ptr<EngineObserver>& observer) {
  if (const auto now = observer.lock()) now->begins(accounts_.where());
  observer_ = observer;
  exchange_.observe(observer);
  pager_->observe(observer);
  micro_batch_.observe(observer);
  accounts_.observe(observer);
}

TrafficMeter& Engine::Impl::meter() {
  settle_parameters();
  return *meter_;
}

// What is on its way to all ranks.
void Engine::Impl::settle_parameters() {
  for (auto& unit : units_) pager_->settle_published(*unit);
  pager_->settle_renewed();
}

Estimate Engine::Impl::estimate() const {
  return zero::estimate(plan_, layout_, rules_, trace().value_or(Trace::sequential(layout_)), memory(),
                        {groups_.along(Axis::data).topology(), groups_.along(Axis::shard).topology(),
                         groups_.along(Axis::replica).topology()},
                        options_.disk);
}

}  // namespace zero
