#include "gradients/gradients.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "backwards/running_backward.h"
#include "base/codec.h"
#include "base/elements.h"
#include "gradients/unit_gradients.h"
#include "units/for_unit.h"
#include "zero/activations.h"
#include "zero/error.h"
#include "zero/estimate.h"

namespace zero {

namespace {

// The gradient's elements in the memory order of its parameter.
at::Tensor in_order_of(const at::Tensor& parameter, const at::Tensor& gradient) {
  const bool same = !gradient.is_sparse() && gradient.strides() == parameter.strides() &&
                    gradient.scalar_type() == parameter.scalar_type();
  if (same) return gradient;
  at::Tensor ordered = at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options());
  return ordered.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
}

// Beside a gradient that is in the host's memory one array passes through, of what is on the device.
StagingShape shape_for(const Store& store) {
  return staging_for(store, store.tier() == Tier::host ? 1 : StagingShape::kArrays);
}

AddressableStore memory_beside(Accounts& accounts, const Device& computing) {
  if (&computing == &accounts.device()) return {Tier::device, accounts.lasting_visible(), accounts.book()};
  return {Tier::host, accounts.lasting_of_host(), accounts.book()};
}

}  // namespace

UnitStores gradient_stores(const Plan& plan, Accounts& accounts, std::vector<char> staying) {
  constexpr auto kArena = Accounts::Arena::gradients;
  return accounts.stores(State::gradient, plan[State::gradient].tier,
                         Routes(plan).reduces_each() ? accounts.lasting(kArena) : accounts.lasting_visible(kArena),
                         std::move(staying));
}

Gradients::Home::Home(Accounts& accounts, Store& of)
    : store(of),
      computing(accounts.computing(of.tier())),
      memory(memory_beside(accounts, computing)),
      staging(accounts.staging(computing, shape_for(of))),
      late_staging(accounts.staging(computing, shape_for(of))) {}

Gradients::Gradients(std::vector<std::unique_ptr<Unit>>& units, Exchange& exchange, const Plan& plan,
                     const Routes& routes, Accounts& accounts, const UnitStores& stores)
    : units_(units),
      exchange_(exchange),
      plan_(plan),
      routes_(routes),
      order_(plan_, exchange.size(), exchange.rank()),
      sums_(sums_of_step(plan_, exchange.size())),
      accounts_(accounts),
      stores_(stores),
      offloaded_(std::make_unique<Home>(accounts, stores.offloaded())),
      resident_(stores.resident() == nullptr ? nullptr : std::make_unique<Home>(accounts, *stores.resident())),
      coded_(units, routes, accounts) {
  if (!offloaded_->in_place() && exchange_.size() > 1 && routes_.gathers_sum())
    throw ConfigError("gradients on tier " + std::string(name(offloaded_->store.tier())) +
                          " cannot be gathered: the plan wants more of them on a rank than its slice over all",
                      "use zero1, zero2, zero3 or hybrid-zero2");
  for (auto& unit : units_)
    by_unit_.push_back(std::make_unique<UnitGradients>(*unit, home_of(*unit), part(*unit),
                                                       plan_.gradient_dtype(unit->layout().dtype())));
  units_order_.resize(units_.size());
  std::iota(units_order_.rbegin(), units_order_.rend(), 0);
  for (auto& gradients : by_unit_) {
    const Unit& unit = gradients->unit;
    for (int slot = 0; slot < static_cast<int>(unit.parameters().size()); ++slot)
      gradients->hooks.push_back(std::make_unique<AccumulationHook>(unit.parameters()[static_cast<std::size_t>(slot)],
                                                                    [this, &unit, slot] { take(unit.index(), slot); }));
  }
}

Gradients::~Gradients() {
  hide_placeholders();
}

void Gradients::renew_hooks() {
  for (auto& gradients : by_unit_)
    for (auto& hook : gradients->hooks) hook->renew();
}

void Gradients::require_planned(int micro) const {
  if (plan_.reproducible() && plan_.accumulate() > 1 && micro >= plan_.accumulate())
    throw StateError(
        "backward number " + std::to_string(micro + 1) + " of a step planned for " + std::to_string(plan_.accumulate()),
        "a reproducible plan adds exactly `accumulate` micro-batches: raise it, or call step()");
}

void Gradients::begin(int micro) {
  micro_ = micro;
  next_ = 0;
  completed_.clear();
  if (beyond_plan()) hold_wide();
  for (auto& gradients : by_unit_) {
    const auto& parameters = gradients->unit.parameters();
    gradients->expected = static_cast<int>(std::count_if(
        parameters.begin(), parameters.end(), [](const at::Tensor& p) { return p.requires_grad() && p.numel() > 0; }));
    gradients->arrived = 0;
    gradients->complete = false;
    std::fill(gradients->here.begin(), gradients->here.end(), 0);
    if (gradients->expected > 0 && !gradients->used) {
      for_unit(gradients->unit, "the gradient", [&] { open(*gradients); });
      gradients->used = true;
    }
    if (gradients->used && adds_apart() && !gradients->extra) {
      gradients->extra.take(gradients->home.memory, gradients->unit.index(), 1);
      clear_gaps(*gradients, gradients->extra);
    }
  }
  active_ = true;
  launched_ = !reduces_now();
}

// Accumulators, with zeros where no parameter lies, and everywhere for a unit unfrozen within a step.
void Gradients::open(UnitGradients& gradients) {
  const TierMeter::SetupTraffic apart;
  HeldGradient& held = gradients.held;
  before_change_(gradients.unit.index());
  const bool taken = !held;
  if (taken) held.take(gradients.home.store, gradients.unit.index(), sums_.levels);
  // Where a sum was decoded, a block that was not finite has left no zeros there.
  if (!reduces_each() && (taken || has_codec(plan_[State::gradient].wire))) clear_gaps(gradients, held);
  if (micro_ > 0) held.fill_with_zeros(gradients.home.staging, held.slice());
  coded_.open(gradients.unit);
}

Dtype Gradients::added_in(const UnitGradients& gradients) const {
  return adds_apart() ? gradients.planned : gradients.held.dtype();
}

HeldGradient& Gradients::partial(UnitGradients& gradients) const {
  return adds_apart() ? gradients.extra : gradients.held;
}

void Gradients::clear_gaps(UnitGradients& gradients, HeldGradient& gradient) {
  for (const auto& [begin, end] : gradients.unit.layout().gaps())
    gradient.fill_with_zeros(gradients.home.staging, {begin, end - begin});
}

// For sums over micro-batches that were not planned.
void Gradients::hold_wide() {
  for (auto& gradients : by_unit_) {
    const Dtype wide = accumulation(gradients->unit.layout().dtype());
    if (gradients->held.dtype() == wide) continue;
    before_change_(gradients->unit.index());
    for_unit(gradients->unit, "the gradient", [&, &home = gradients->home] {
      gradients->held = gradients->held.widened(home.staging, home.store, gradients->unit.index(), wide);
    });
  }
}

// Whether a gradient that arrives now is wanted.
bool Gradients::accepts(const std::string& parameter) {
  const RunningBackward* const running = RunningBackward::current();
  if (!active_ && running != nullptr && (of_others_ || running->of_program())) begin_from_outside_();
  if (active_ || running != nullptr) return active_;
  throw StateError("rank " + std::to_string(exchange_.rank()) + ": a gradient of parameter '" + parameter +
                       "' arrived outside of a backward of a loss on the engine's thread",
                   "call engine.backward(loss), or loss.backward(), on the thread that built the engine");
}

void Gradients::on_arrival_from_outside(const TakesGradients& engine, bool of_others, std::function<void()> begin) {
  engine_ = &engine;
  of_others_ = of_others;
  begin_from_outside_ = std::move(begin);
}

// Behind the program's hooks, one of which may have taken it away.
void Gradients::take(int unit, int slot) {
  UnitGradients& gradients = *by_unit_[static_cast<std::size_t>(unit)];
  const at::Tensor& parameter = gradients.unit.parameters()[static_cast<std::size_t>(slot)];
  if (!parameter.requires_grad()) return;
  const std::string& name = gradients.unit.layout().slot(slot).name;
  const at::Tensor arrived_gradient = std::exchange(parameter.mutable_grad(), at::Tensor());
  if (!accepts(name) || !arrived_gradient.defined() || parameter.numel() == 0) return;
  if (gradients.complete)
    throw StateError("rank " + std::to_string(exchange_.rank()) + ": a second gradient of parameter '" + name +
                         "' arrived after its unit was reduced",
                     "nested backward passes must not reach parameters twice");
  const Dtype dtype = gradients.unit.layout().dtype();
  const Dtype summed = reduces_each() ? plan_.reduction_dtype(dtype) : added_in(gradients);
  if (gradients.here[static_cast<std::size_t>(slot)] && summed != accumulation(dtype))
    throw StateError("rank " + std::to_string(exchange_.rank()) + ": a second gradient of parameter '" + name +
                         "' arrived in one backward, and its sum in " + std::string(zero::name(summed)) +
                         " would depend on the plan",
                     reduces_each() ? "nested backward passes need Plan::reduce_in(Dtype::f32)"
                                    : "nested backward passes need precision fp32 or Plan::accumulate above 1");
  before_change_(unit);
  at::NoGradGuard no_grad;
  const at::Tensor own = gradients.unit.own_gradient(slot, arrived_gradient);
  const at::Tensor gradient = keep(in_order_of(gradients.unit.own(slot), own));  // it is read past operators
  if (reduces_each()) {
    collect(gradients, slot, &gradient);
  } else {
    add_partial(gradients, slot, &gradient);
  }
  const auto index = static_cast<std::size_t>(slot);
  if (!std::exchange(gradients.here[index], char{1})) ++gradients.arrived;
  gradients.ever[index] = 1;
  if (gradients.arrived == gradients.expected) {
    complete(gradients);
    if (reduces_now()) launch_ready();
  }
}

void Gradients::add_partial(UnitGradients& gradients, int slot, const at::Tensor* gradient) {
  const UnitLayout& layout = gradients.unit.layout();
  const Slot& place = layout.slot(slot);
  AccumulateStep fold_it = adds_apart() ? AccumulateStep{} : order_.steps(micro_).front();
  if (gradients.here[static_cast<std::size_t>(slot)]) fold_it.sources = {fold_it.target};
  for_unit(gradients.unit, "the gradient", [&] {
    if (gradients.here[static_cast<std::size_t>(slot)]) finish_arriving();  // those before it of the same elements
    Home& home = gradients.home;
    if (!home.arriving) home.arriving.emplace(home.staging);
    home.arrived = &gradients.unit;
    partial(gradients).add(*home.arriving, fold_it, {place.begin, place.numel},
                           gradient == nullptr ? nullptr : borrowed(*gradient), layout.dtype());
  });
}

// Which keeps the tensor.
std::shared_ptr<Block> Gradients::borrowed(const at::Tensor& gradient) const {
  struct Lent {
    at::Tensor tensor;
    Block block;
  };
  const auto bytes = static_cast<std::int64_t>(gradient.nbytes());
  const auto both =
      std::make_shared<Lent>(Lent{gradient, accounts_.borrowed(gradient.const_data_ptr(), bytes, Owner::gradient)});
  return {both, &both->block};
}

void Gradients::finish_arriving() {
  for (Home* const home : {offloaded_.get(), resident_.get()}) {
    if (home == nullptr || !home->arriving) continue;
    for_unit(*home->arrived, "the gradient", [&] { home->arriving->finish(); });
    home->arriving.reset();
  }
}

void Gradients::collect(UnitGradients& gradients, int slot, const at::Tensor* gradient) {
  const UnitLayout& layout = gradients.unit.layout();
  const Dtype wire = plan_.reduction_dtype(layout.dtype());
  const Slot& place = layout.slot(slot);
  Device& device = accounts_.device();
  if (!gradients.flat) {
    gradients.flat = flat_for(gradients.unit);
    for (const auto& [begin, end] : layout.gaps())
      device.zero(at_element(gradients.flat->data(), begin, wire), (end - begin) * size_of(wire));
  }
  void* const target = at_element(gradients.flat->data(), place.begin, wire);
  if (gradient == nullptr) {
    device.zero(target, place.numel * size_of(wire));
  } else if (gradients.here[static_cast<std::size_t>(slot)]) {
    device.run(Add{target, wire, gradient->const_data_ptr(), layout.dtype(), place.numel});
  } else {
    device.run(Convert{gradient->const_data_ptr(), layout.dtype(), target, wire, place.numel});
  }
}

// Parameters without a gradient count as zero.
void Gradients::complete(UnitGradients& gradients) {
  before_change_(gradients.unit.index());
  for (std::size_t slot = 0; slot < gradients.here.size(); ++slot) {
    if (gradients.here[slot]) continue;
    if (reduces_each()) {
      collect(gradients, static_cast<int>(slot), nullptr);
    } else {
      add_partial(gradients, static_cast<int>(slot), nullptr);
    }
  }
  gradients.complete = true;
  completed_.push_back(gradients.unit.index());
}

void Gradients::end() {
  at::NoGradGuard no_grad;
  ending_ = true;
  for (const int index : units_order_) {
    UnitGradients& gradients = *by_unit_[static_cast<std::size_t>(index)];
    if (!gradients.used || gradients.complete) continue;
    complete(gradients);
    if (reduces_now()) launch_ready();
  }
  if (reduces_now()) launch_ready();
  finish_arriving();
  wait_for_reductions();
  close();
  if (!ordered_ && exchange_.size() > 1) agree_on_order();
}

void Gradients::abort() {
  for (Reduction& each : std::exchange(in_flight_, {})) {
    try {
      each.pending.wait();
    } catch (const std::exception&) {
      // The failure that ends the step is already on its way to the caller.
    }
  }
  for (Home* const home : {offloaded_.get(), resident_.get()})
    if (home != nullptr) home->arriving.reset();
  for (auto& gradients : by_unit_) {
    gradients->flat.reset();
    gradients->slice.reset();
  }
  coded_.begin_anew();
  drop_arrived();
  close();
  clear();
}

void Gradients::drop_arrived() {
  for (auto& gradients : by_unit_) {
    std::fill(gradients->shown.begin(), gradients->shown.end(), 0);
    for (const at::Tensor& parameter : gradients->unit.parameters()) parameter.mutable_grad().reset();
  }
}

void Gradients::close() {
  active_ = false;
  ending_ = false;
  launched_ = false;
}

void Gradients::settle_errors(bool begin_anew) {
  for (const auto& gradients : by_unit_)
    if (!gradients->used)
      coded_.drop(gradients->unit);
    else if (begin_anew)
      coded_.begin_anew(gradients->unit);
}

void Gradients::clear() {
  for (auto& gradients : by_unit_) {
    std::fill(gradients->ever.begin(), gradients->ever.end(), 0);
    gradients->used = false;
    gradients->extra.reset();
    if (gradients->held.dtype() == gradients->planned) continue;
    before_change_(gradients->unit.index());
    gradients->held.become(gradients->planned);
  }
}

const HeldGradient* Gradients::held(int unit) const {
  const UnitGradients& gradients = *by_unit_[static_cast<std::size_t>(unit)];
  return gradients.used ? &gradients.held : nullptr;
}

void Gradients::read(int unit, const Slice& elements, const HeldGradient::Read& use) {
  const UnitGradients& gradients = *by_unit_[static_cast<std::size_t>(unit)];
  for_unit(gradients.unit, "the gradient", [&] { gradients.held.read(gradients.home.staging, elements, use); });
}

bool Gradients::any_arrived() const {
  return std::ranges::any_of(by_unit_, [](const auto& gradients) {
    return std::ranges::find(gradients->ever, char{1}) != gradients->ever.end();
  });
}

bool Gradients::arrived(int unit, int slot) const {
  return by_unit_[static_cast<std::size_t>(unit)]->ever[static_cast<std::size_t>(slot)] != 0;
}

}  // namespace zero
