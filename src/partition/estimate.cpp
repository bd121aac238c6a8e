#include "zero/estimate.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "partition/accumulation_order.h"
#include "partition/building.h"
#include "partition/element_order.h"
#include "partition/flat_gradients.h"
#include "partition/full_tensor_owners.h"
#include "partition/moments.h"
#include "partition/packed_ranges.h"
#include "partition/paging.h"
#include "partition/per_rank.h"
#include "partition/repeated.h"
#include "partition/routes.h"
#include "partition/staging.h"
#include "partition/staying.h"
#include "partition/tier_traffic.h"
#include "partition/vote_sizes.h"
#include "partition/wire.h"
#include "zero/error.h"

namespace zero {

namespace {

std::size_t parameters_of(const Layout& layout) {
  std::size_t count = 0;
  for (const UnitLayout& unit : layout.units()) count += unit.slots().size();
  return count;
}

// Prices one step of a plan that is already the one on the layout's mesh.
class Pricing {
 public:
  Pricing(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules, const Repeats& repeats,
          Memory memory, const Topologies& topologies)
      : plan_(plan),
        layout_(layout),
        rules_(rules),
        repeats_(repeats),
        stay_(zero::staying(plan, layout, rules, repeats)),
        uniform_(uniform_moments(rules)),
        sums_(sums_of_step(plan, layout.ranks())),
        routes_(plan, topologies.rank() < 0 ? sums_.least : topologies.rank()),
        memory_(lies_apart() && memory == Memory::common ? Memory::separate : memory),
        topologies_(topologies) {}

  Estimate run(const Trace& trace, std::int64_t staging) && {
    for (std::size_t i = 0; i < repeats_.size(); ++i) {
      const UnitLayout& unit = layout_.units()[i];
      state(unit, repeats_[i], stay_[i]);
      add_slices(stay_[i], slice_of(unit, /*offloaded=*/false));
      add_slices(repeats_[i] - stay_[i], slice_of(unit, gradient_offloaded()));
      if (!unit.trainable()) continue;
      flat(unit, repeats_[i]);
      update(unit);
    }
    hold(Owner::reduction, (routes_.reduces_each() ? flats_.most() : flats_.largest()) +
                               flats_.beside(plan_.on_their_way()) + estimate_.largest_slice() + coded_sums());
    const std::int64_t here = on_device() ? 0 : staging;
    hold(Owner::reduction, errors());
    hold(Owner::update, inputs_ + steps_ + here);
    hold(Owner::update, staging - here, Tier::host);
    estimate_.building = building_bytes(plan_, layout_, rules_, repeats_, here);
    optimizer();
    estimate_.update_traffic += 2 * estimate_.state.optimizer;
    snapshot();
    estimate_.moved = moved_between_tiers(plan_, layout_, rules_, repeats_, on_device());
    if (routes_.pages()) page(trace);
    if (mesh().size(Axis::data) > 1) exchange();
    return estimate_;
  }

 private:
  const MeshShape& mesh() const { return layout_.mesh(); }
  // Whether reductions of all micro-batches are.
  bool alike() const { return AccumulationOrder(plan_, layout_.ranks(), 0).alike(); }
  bool on_device() const { return memory_ == Memory::device; }
  // Whether ranks read all of the parameters where they lie; or what is kept whole lies once for a shard group.
  bool in_place() const { return memory_ == Memory::common && !routes_.keeps_for_group(mesh()); }
  bool kept_in_common() const { return memory_ == Memory::common && routes_.keeps_for_group(mesh()); }
  // Whether what ranks have of parameters cannot be read where it lies.
  bool lies_apart() const { return routes_.brings() || routes_.codec() != Wire::native; }

  void hold(Owner owner, std::int64_t bytes, Tier tier = Tier::device) { estimate_.held.add(owner, bytes, tier); }
  // Of a state, of which so much stays on the device in any case.
  void hold(State state, std::int64_t bytes, std::int64_t stays = 0) {
    const bool here = plan_[state].tier == Tier::device;
    hold(owner_of(state), here ? bytes : bytes - stays, plan_[state].tier);
    if (!here) hold(owner_of(state), stays);
  }

  // As much as on every other rank.
  std::int64_t held(const UnitLayout& unit, State state) const { return routes_.rest(state, unit).count; }

  void add_slices(std::int64_t times, std::int64_t bytes) {
    estimate_.slices.insert(estimate_.slices.end(), static_cast<std::size_t>(times), bytes);
  }

  // Of so many units, of which so many stay.
  void state(const UnitLayout& unit, std::int64_t times, std::int64_t stay) {
    StateBytes& state = estimate_.state;
    const std::int64_t parameters = times * held(unit, State::parameter) * size_of(unit.dtype());
    state.parameter += parameters;
    hold(State::parameter, parameters);
    if (!unit.trainable()) return;
    const Dtype dtype = plan_.gradient_dtype(unit.dtype());
    const std::int64_t kept = routes_.between(State::gradient, unit).count;
    const std::int64_t gradients = kept * size_of(dtype) * sums_.levels;
    state.gradient += times * gradients;
    hold(State::gradient, times * gradients, stay * gradients);
    const std::int64_t updated = held(unit, State::optimizer);
    if (plan_.delays_update()) late(times * updated * size_of(unit.dtype()));
    state.optimizer += times * updated * plan_.remainder_bytes(unit.dtype());
    staying_elements_ += stay * updated * plan_.remainder_bytes(unit.dtype());
    const std::int64_t moved = updated * (size_of(dtype) + (has_main(unit) ? 1 : 2) * size_of(unit.dtype()));
    estimate_.update_traffic += times * moved;
    estimate_.update_staying += stay * moved;
  }

  // What a delayed update writes of parameters, beside those that are computed with.
  void late(std::int64_t bytes) {
    estimate_.state.parameter += bytes;
    hold(Owner::parameter, bytes, on_device() ? Tier::host : plan_[State::parameter].tier);
  }

  // How many ranks have the same of a unit.
  std::int64_t copies(const UnitLayout& unit, State state) const {
    return unit.length() == 0 ? 1 : layout_.ranks() * held(unit, state) / unit.length();
  }

  bool has_main(const UnitLayout& unit) const {
    return unit.trainable() && accumulation(unit.dtype()) != unit.dtype() &&
           plan_.remainder(unit.dtype()) == Remainder::main_weights;
  }

  // Each rank saves its part of what it has, which is not parameters that follow from main weights; of what
  // differences are from; and errors.
  void snapshot() {
    std::int64_t alike = 1, bytes = 0;
    for (std::size_t i = 0; i < repeats_.size(); ++i) {
      const UnitLayout& unit = layout_.units()[i];
      if (unit.trainable() && unit.length() > 0) alike = copies(unit, State::optimizer);
      const int saved = (has_main(unit) ? 0 : 1) + (unit.trainable() && differs(routes_.keep(unit).codec) ? 1 : 0);
      bytes +=
          saved * repeats_[i] * held(unit, State::parameter) * size_of(unit.dtype()) / copies(unit, State::parameter);
      if (!unit.trainable()) continue;
      for (const Routes::Errors& errors : routes_.errors(unit))
        bytes += repeats_[i] * errors.of.count * size_of(Dtype::bf16);
    }
    estimate_.held.entries[static_cast<std::size_t>(Owner::snapshot)].peak = bytes + estimate_.state.optimizer / alike;
  }

  // Moments, of the rank that has most. Ranks in the order of their slices over all.
  void optimizer() {
    PerRank bytes(layout_.ranks()), below(layout_.ranks()), here(layout_.ranks());
    for (std::size_t i = 0; i < repeats_.size(); ++i) {
      const UnitLayout& unit = layout_.units()[i];
      if (!unit.trainable()) continue;
      moments_of_ranks(unit, repeats_[i], bytes);
      if (!optimizer_offloaded()) continue;
      moments_of_ranks(unit, repeats_[i] - stay_[i], below);
      moments_of_ranks(unit, stay_[i], here);
    }
    estimate_.update_staying += 2 * (staying_elements_ + PerRank(here).most());
    if (std::ranges::any_of(rules_, [](const ParameterRule& rule) { return owned_values(rule) > 0; }))
      for (PerRank* const each : {&bytes, &here}) owned(*each);
    if (optimizer_offloaded()) {
      hold(Owner::optimizer, estimate_.state.optimizer - staying_elements_ + std::move(below).most(),
           plan_[State::optimizer].tier);
      hold(Owner::optimizer, staying_elements_ + std::move(here).most());
    }
    estimate_.state.optimizer += std::move(bytes).most();
    if (!optimizer_offloaded()) hold(Owner::optimizer, estimate_.state.optimizer);
  }

  // What the owners of parameters keep of them.
  void owned(PerRank& bytes) const {
    each_owner(layout_, rules_, repeats_, [&](const UnitLayout& unit, const Slot& slot, int owner) {
      const std::int64_t values = owned_values(rules_[static_cast<std::size_t>(slot.index)]);
      const int slice = mesh().slice_of(owner);
      if (unit.trainable()) bytes.add(slice, slice + 1, values * size_of(accumulation(unit.dtype())));
    });
  }

  void moments_of_ranks(const UnitLayout& unit, std::int64_t times, PerRank& bytes) const {
    const std::int64_t length = held(unit, State::optimizer);
    if (length == 0 || times == 0) return;
    const auto slices = static_cast<int>(unit.length() / length);  // of which several ranks may have the same
    const int alike_ranks = layout_.ranks() / slices;
    const auto alike = [&](int first, int last) {
      bytes.add(alike_ranks * first, alike_ranks * last,
                times * moment_bytes(unit, first * length, (first + 1) * length, rules_));
    };
    if (!routes_.updates_slices() || uniform_) return alike(0, slices);
    alike_slices(unit, length, alike);
  }

  // The flat gradient, but where the held one is as it travels.
  void flat(const UnitLayout& unit, std::int64_t times) {
    if (mesh().size(Axis::data) == 1) return;
    const Dtype held = plan_.gradient_dtype(unit.dtype());
    if (routes_.flat(unit, routes_.reduce(unit), held, gradient_offloaded()))
      flats_.add(unit, times, sums_.left * unit.length() * size_of(routes_.sent(unit, held)));
  }

  // For those that cross, of the unit that has most.
  std::int64_t coded_sums() const {
    std::int64_t most = 0;
    for (const UnitLayout& unit : layout_.units())
      if (unit.trainable()) most = std::max(most, routes_.coded_sum_bytes(unit));
    return most;
  }

  // What they are fed back, of all units.
  std::int64_t errors() const {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < repeats_.size(); ++i)
      if (const UnitLayout& unit = layout_.units()[i]; unit.trainable())
        bytes += repeats_[i] * routes_.error_bytes(unit);
    return bytes;
  }

  bool gradient_offloaded() const { return plan_[State::gradient].tier != Tier::device; }
  bool optimizer_offloaded() const { return plan_[State::optimizer].tier != Tier::device; }

  // Where the sum is made, but where it is held as added; of a unit whose gradient is offloaded or not.
  std::int64_t slice_of(const UnitLayout& unit, bool offloaded) const {
    if (mesh().size(Axis::data) == 1 || !unit.trainable()) return 0;
    const bool added = routes_.reduces_each() && plan_.accumulate() > 1;
    if (!routes_.apart(unit, routes_.reduce(unit), plan_.gradient_dtype(unit.dtype()), offloaded, added)) return 0;
    std::int64_t numbers = 0;
    for (int micro = 0; micro < (routes_.reduces_each() && !alike() ? plan_.accumulate() : 1); ++micro)
      numbers = std::max(numbers, routes_.reduce(unit, micro).numbers());
    return numbers * size_of(accumulation(unit.dtype()));
  }

  void update(const UnitLayout& unit) {
    const FullTensorUnit work = full_tensor_unit(unit, rules_);
    inputs_ = std::max(inputs_, input_bytes(unit, work));
    steps_ = std::max(
        steps_,
        step_bytes(unit, work, std::max(held(unit, State::optimizer), routes_.steps(unit, work.wire).room().count)));
  }

  void page(const Trace& trace) {
    std::vector<std::int64_t> bytes;
    for (std::size_t i = 0; i < repeats_.size(); ++i)
      bytes.insert(bytes.end(), static_cast<std::size_t>(repeats_[i]), layout_.units()[i].bytes());
    const Paging paged = paging(plan_, bytes, trace);
    auto occurrence = paged.gathers.begin();
    for (std::size_t i = 0; i < repeats_.size(); ++i) {
      const auto end = occurrence + repeats_[i];
      gather(i, std::accumulate(occurrence, end, std::int64_t{0}));
      occurrence = end;
    }
    if (!in_place() && !kept_in_common() && paged.most > 0)
      hold(Owner::gathered, paged.most + wire_room(layout_, plan_));
  }

  void bring(const UnitLayout& unit, std::int64_t times) {
    estimate_.moved.use +=
        moved_for_use(plan_, times * held(unit, State::parameter) * size_of(unit.dtype()), on_device());
  }

  void gather(std::size_t unit, std::int64_t times) {
    const UnitLayout& layout = layout_.units()[unit];
    if (routes_.keeps_whole() && !layout.trainable()) times = 0;  // it has been there since the first step
    times_ = times;
    estimate_.gathers += static_cast<int>(times);
    if (routes_.brings()) bring(layout, times);
    if (routes_.gathers() && !in_place()) announce(routes_.within());
    if (layout.length() > 0) call(routes_.use(layout, /*exactly=*/in_place()), in_place());
    times_ = repeats_[unit];
    if (routes_.keeps() && !in_place() && layout.length() > 0) keep(layout);
    times_ = 1;
  }

  // What is not trained has been kept since the first step.
  void keep(const UnitLayout& unit) {
    const Route route = kept_in_common() ? routes_.keep_in_common(unit) : routes_.keep(unit);
    if (kept_in_common() || !routes_.keeps_whole()) {
      const std::int64_t elements = route.to.count - (kept_in_common() ? route.from.count : 0);
      hold(Owner::gathered, times_ * elements * size_of(unit.dtype()));
    }
    if (!unit.trainable()) return;
    call(route);
    if (kept_in_common()) estimate_.wire[Collective::barrier].add({}, times_);
  }

  void exchange() {
    std::int64_t parameters = 0;
    for (std::size_t i = 0; i < repeats_.size(); ++i) {
      const UnitLayout& unit = layout_.units()[i];
      parameters += repeats_[i] * static_cast<std::int64_t>(unit.slots().size());
      if (!unit.trainable() || unit.length() == 0) continue;
      times_ = repeats_[i];
      agree_on_steps(unit);
    }
    for (std::size_t i = 0; i < repeats_.size(); ++i) {
      times_ = repeats_[i];
      for (const Transition& each : routes_.of(layout_.units()[i]))
        if (each.when != When::use && each.when != When::keep) carry_out(each, layout_.units()[i]);
    }
    times_ = 1;
    table(Axis::data, vote_bytes(parameters, plan_.accumulate(), plan_.float8()) / size_of(Dtype::i64));
    if (in_place()) renew();
  }

  // Common parameters have been updated.
  void renew() {
    if (!routes_.gathers()) return;
    announce();
    estimate_.wire[Collective::barrier].add({}, times_);
  }

  void carry_out(const Transition& transition, const UnitLayout& unit) {
    const bool each = transition.when == When::gradient;
    for (int micro = 0; micro < (each ? plan_.accumulate() : 1); ++micro) {
      if (!transition.joined) announce();
      call(each && !alike() ? routes_.reduce(unit, micro) : transition.route);
    }
  }

  // Optimizers over whole tensors: what goes to the owners, the steps that come from them, and norms.
  void agree_on_steps(const UnitLayout& unit) {
    const FullTensorUnit work = full_tensor_unit(unit, rules_);
    const std::optional<Axis> over = routes_.rest(State::optimizer, unit).over;
    if (work.owned && over) operation(routes_.updated(unit, work.wire));
    if (work.owned) operation(routes_.steps(unit, work.wire));
    if (work.owned) call(routes_.brought_steps(unit));
    if (over && !work.normed.empty()) table(*over, norm_words(work));
  }

  void operation(const Route& route) {
    announce();
    call(route);
  }

  void table(Axis over, std::int64_t words) {
    announce();
    const Route route = table_route(mesh(), over, words, 0);
    for (const Hop& hop : route.hops) say(hop.axis, route.bytes(hop));
  }

  // Along `within`: what concerns a shard group only is announced in it only. See units/exchange.h.
  void announce(Axis within = Axis::data) {
    if (routes_.within() == Axis::data) return say(Axis::data, kAnnouncementBytes);
    say(Axis::shard, kAnnouncementBytes);
    if (within == Axis::data) say(Axis::replica, kAnnouncementBytes);
  }

  void call(const Route& route, bool in_place = false) {
    for (const Hop& hop : route.hops) {
      const Topology& topology = topologies_.of_tensors(hop.axis);
      Moved moved = moved_by(hop.carried_by(), mesh().size(hop.axis), topology, route.bytes(hop), Route::sum_bytes(hop),
                             hop.leaves, mesh().at(hop.axis, routes_.rank()));
      if (in_place) moved.in_place = moved.bytes;
      const bool coded = has_codec(route.codec) || has_codec(hop.codec);
      estimate_.wire[hop.carried_by()].add(moved, times_, coded);
    }
  }

  // From every rank to each other one along the axis, between hosts' memories.
  void say(Axis axis, std::int64_t bytes) {
    const Moved moved = moved_by(Collective::all_gather, mesh().size(axis), topologies_.of_words(axis), bytes, bytes);
    estimate_.wire[Collective::all_gather].add(moved, times_);
  }

  const Plan& plan_;
  const Layout& layout_;
  const std::vector<ParameterRule>& rules_;
  const Repeats& repeats_;
  std::vector<std::int64_t> stay_;  // of them
  bool uniform_;
  SumsOfStep sums_;
  Routes routes_;
  Memory memory_;
  Topologies topologies_;
  std::int64_t times_ = 1;               // collectives that are alike
  std::int64_t inputs_ = 0, steps_ = 0;  // of the unit that has most
  std::int64_t staying_elements_ = 0;    // remainders of what stays
  FlatGradients flats_;                  // as they are collected
  Estimate estimate_;
};

bool has_host_tier(const Plan& plan) {
  return std::ranges::any_of(std::array{State::parameter, State::gradient, State::optimizer},
                             [&](State state) { return plan[state].tier == Tier::host; });
}

void require_shapes(const Layout& layout, const std::vector<ParameterRule>& rules) {
  for (const UnitLayout& unit : layout.units())
    for (const Slot& slot : unit.slots()) {
      const ParameterRule& rule = rules[static_cast<std::size_t>(slot.index)];
      if (full_tensor_work(rule.optimizer) && elements_of(rule.shape) != slot.numel)
        throw ConfigError("the rule of parameter '" + slot.name +
                              "' needs its shape: " + std::string(name(rule.optimizer)) + " works on whole tensors",
                          "make rules by parameter_rules()");
    }
}

}  // namespace

Topologies::Topologies(const Topology& all, const MeshShape& mesh) : Topologies(all) {
  const int group = mesh.size(Axis::shard), host = all.ranks_per_host;
  if (mesh.size(Axis::replica) == 1) return;
  const Topology shard{.ranks_per_host = host >= group ? 0 : host};
  const Topology replica{.ranks_per_host = host == 0 ? 0 : std::max(1, host / group)};
  *this = Topologies(all, shard, replica);
}

StateBytes Estimate::on(Tier tier) const {
  const auto bytes = [&](Owner owner) { return held.on(tier, owner).bytes; };
  return {bytes(Owner::parameter), bytes(Owner::gradient), bytes(Owner::optimizer)};
}

std::int64_t Estimate::buffers() const {
  return held[Owner::gathered].peak + held[Owner::reduction].peak + held[Owner::update].peak;
}

Topologies Topologies::seen_by(int rank) const {
  Topologies seen = *this;
  seen.rank_ = rank;
  return seen;
}

Estimate estimate(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules, const Trace& trace,
                  Memory memory, const Topologies& topologies, const DiskOptions& disk) {
  return estimate(plan, layout, rules, Repeats(layout.units().size(), 1), trace, memory, topologies, disk);
}

Estimate estimate(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules,
                  const Repeats& repeats, const Trace& trace, Memory memory, const Topologies& topologies,
                  const DiskOptions& disk) {
  plan.validate(layout.mesh());
  if (rules.size() != parameters_of(layout))
    throw ConfigError("an estimate needs a rule for each of the layout's " + std::to_string(parameters_of(layout)) +
                      " parameters, not " + std::to_string(rules.size()));
  require_shapes(layout, rules);
  const Plan local = plan.on(layout.mesh(), topologies.of_words(Axis::data).ranks_per_host);
  if (has_host_tier(local)) memory = Memory::device;
  return Pricing(local, layout, rules, repeats, memory, topologies)
      .run(trace, staging_bytes(local, disk, memory == Memory::device));
}

Estimate estimate(const Plan& plan, const Layout& layout, const Optimizer& optimizer, const Trace& trace, Memory memory,
                  const Topologies& topologies) {
  if (full_tensor_work(optimizer))
    throw ConfigError("an estimate of " + std::string(name(optimizer)) + " needs the parameters' shapes: give rules");
  return estimate(plan, layout, std::vector<ParameterRule>(parameters_of(layout), {optimizer}), trace, memory,
                  topologies);
}

}  // namespace zero
