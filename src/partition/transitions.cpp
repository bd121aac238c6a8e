#include "partition/transitions.h"

#include "base/text.h"
#include "partition/wire.h"

namespace zero {
namespace {

bool sharded(Placement placement) {
  return placement == Placement::sharded;
}

Held held(Placement placement, Axis over, const UnitLayout& unit, int rank) {
  if (!sharded(placement)) return {{0, unit.length()}};
  return {unit.slice(over, rank), over};
}

// Into how fine parts a row cuts: not at all, over a shard group, over all.
int fineness(const Row& row) {
  if (!sharded(row.placement)) return 0;
  return row.over == Axis::shard ? 1 : 2;
}

class List {
 public:
  List(const Plan& plan, const Layout& layout) : plan_(plan), layout_(layout), movement_(movement(plan)) {}

  std::vector<Transition> all() && {
    each([&](int unit) {
      if (movement_.pages) page(unit);
    });
    if (layout_.ranks() == 1) return std::move(all_);
    trainable([&](int unit) { reduce(unit); });
    trainable([&](int unit) {
      if (movement_.publishes) publish(unit);
    });
    return std::move(all_);
  }

 private:
  template <class Action>
  void each(Action action) const {
    for (std::size_t i = 0; i < layout_.units().size(); ++i)
      if (layout_.units()[i].length() > 0) action(static_cast<int>(i));
  }
  template <class Action>
  void trainable(Action action) const {
    each([&](int unit) {
      if (at(unit).trainable()) action(unit);
    });
  }
  const UnitLayout& at(int unit) const { return layout_.units()[static_cast<std::size_t>(unit)]; }

  void page(int unit) {
    const Dtype stored = at(unit).dtype();
    const Row& row = plan_[State::parameter];
    const Axis over = movement_.gathers ? row.over : Axis::data;
    all_.push_back({Moment::use,
                    unit,
                    State::parameter,
                    form(row.placement, stored, State::parameter, over),
                    {.placement = Placement::replicated, .dtype = stored},
                    movement_.gathers ? wire_of(row.wire, stored) : Wire::native});
  }

  void reduce(int unit) {
    const Dtype stored = at(unit).dtype(), kept = plan_.gradient_dtype(stored);
    const Moment when = movement_.reduces_each ? Moment::gradient : Moment::sum;
    const Form part = form(Placement::sharded, kept, State::gradient);
    all_.push_back({when, unit, State::gradient,
                    form(Placement::partial, plan_.reduction_dtype(stored), State::gradient), part, Wire::native});
    if (!movement_.gathers_sum) return;
    const Row& row = plan_[State::gradient];
    all_.push_back({Moment::sum, unit, State::gradient, part, form(row.placement, kept, State::gradient, row.over),
                    Wire::native, true});
  }

  void publish(int unit) {
    const Dtype stored = at(unit).dtype();
    const Row& row = plan_[State::parameter];
    all_.push_back({Moment::update, unit, State::parameter,
                    form(Placement::sharded, stored, State::parameter, plan_[State::optimizer].over),
                    form(row.placement, stored, State::parameter, row.over), Wire::native});
  }

  Form form(Placement placement, Dtype dtype, State state, Axis over = Axis::data) const {
    return {placement, dtype, plan_[state].tier, over};
  }

  const Plan& plan_;
  const Layout& layout_;
  Movement movement_;
  std::vector<Transition> all_;
};

}  // namespace

std::vector<Hop> gather_hops(const MeshShape& mesh, Axis over, bool to_all, std::int64_t bytes) {
  std::vector<Hop> hops;
  const int replicas = mesh.size(Axis::replica);
  if (over == Axis::data && replicas > 1) hops.push_back({Collective::all_gather, Axis::replica, bytes});
  if (to_all && mesh.size(Axis::shard) > 1) hops.push_back({Collective::all_gather, Axis::shard, replicas * bytes});
  return hops;
}

std::vector<Hop> reduce_hops(const MeshShape& mesh, Dtype dtype, std::int64_t count) {
  std::vector<Hop> hops;
  const auto hop = [&](Axis axis, Dtype sent, std::int64_t elements) {
    if (mesh.size(axis) > 1)
      hops.push_back(
          {Collective::reduce_scatter, axis, elements * size_of(sent), elements * size_of(accumulation(dtype))});
  };
  const int group = mesh.size(Axis::shard);
  hop(Axis::shard, dtype, count / group);
  hop(Axis::replica, group > 1 ? accumulation(dtype) : dtype, count / mesh.size(Axis::data));
  return hops;
}

std::vector<Hop> Transition::hops(const UnitLayout& layout) const {
  if (from.placement == Placement::partial) return reduce_hops(layout.mesh(), from.dtype, layout.length());
  if (from.placement == Placement::replicated) return {};
  return gather_hops(layout.mesh(), from.over, to.placement == Placement::replicated,
                     coded_bytes(layout.shard_length(), from.dtype, wire));
}

std::string describe(const Row& row) {
  std::string words;
  for (const auto column : {name(row.placement), name(row.between), name(row.tier), name(row.wire), name(row.over)})
    words += (words.empty() ? "" : " ") + std::string(column);
  return row.share == 1 ? words : words + " share " + shortest(row.share);
}

std::pair<std::string, std::string> places(const Row& row) {
  return {std::string(name(row.between)), std::string(name(row.placement))};
}

Movement movement(const Plan& plan) {
  const Row &parameter = plan[State::parameter], &gradient = plan[State::gradient], &optimizer = plan[State::optimizer];
  Movement movement;
  movement.brings = parameter.tier != Tier::device;
  movement.gathers = fineness(parameter) > 0;
  movement.pages = movement.brings || movement.gathers;
  movement.reduces_each = sharded(gradient.between);
  movement.gathers_sum = fineness(gradient) < 2;
  movement.updates_slices = fineness(optimizer) > 0;
  movement.publishes = fineness(optimizer) > fineness(parameter);
  movement.within = movement.gathers ? parameter.over : Axis::data;
  return movement;
}

std::vector<Transition> transitions(const Plan& plan, const Layout& layout) {
  return List(plan, layout).all();
}

Held held_at_rest(const Plan& plan, State state, const UnitLayout& unit, int rank) {
  return held(plan[state].placement, plan[state].over, unit, rank);
}

Held held_between(const Plan& plan, State state, const UnitLayout& unit, int rank) {
  return held(plan[state].between, plan[state].over, unit, rank);
}

std::optional<Axis> divided_between(const Plan& plan, State state) {
  return sharded(plan[state].between) ? std::optional(plan[state].over) : std::nullopt;
}

Slice sum_room(const UnitLayout& unit, int rank) {
  return unit.slice(unit.mesh().size(Axis::replica) > 1 ? Axis::shard : Axis::data, rank);
}

}  // namespace zero
