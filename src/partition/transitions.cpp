#include "partition/transitions.h"

#include "partition/wire.h"

namespace zero {
namespace {

bool sharded(Placement placement) {
  return placement == Placement::sharded;
}

Held held(Placement placement, const UnitLayout& unit, int rank) {
  if (!sharded(placement)) return {0, unit.length(), false};
  return {rank * unit.shard_length(), unit.shard_length(), true};
}

class List {
 public:
  List(const Plan& plan, const Layout& layout) : plan_(plan), layout_(layout), movement_(movement(plan)) {}

  std::vector<Transition> all() && {
    each([&](int unit) {
      if (movement_.gathers) gather(unit);
    });
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

  void gather(int unit) {
    const Dtype stored = at(unit).dtype();
    all_.push_back({Moment::use, unit, State::parameter, form(Placement::sharded, stored, State::parameter),
                    form(Placement::replicated, stored, State::parameter),
                    wire_of(plan_[State::parameter].wire, stored)});
  }

  void reduce(int unit) {
    const Dtype stored = at(unit).dtype(), kept = plan_.gradient_dtype(stored);
    const Moment when = movement_.reduces_each ? Moment::gradient : Moment::sum;
    const Form part = form(Placement::sharded, kept, State::gradient);
    all_.push_back({when, unit, State::gradient,
                    form(Placement::partial, plan_.reduction_dtype(stored), State::gradient), part,
                    plan_[State::gradient].wire});
    if (movement_.gathers_sum)
      all_.push_back(
          {when, unit, State::gradient, part, form(Placement::replicated, kept, State::gradient), Wire::native, true});
  }

  void publish(int unit) {
    const Dtype stored = at(unit).dtype();
    all_.push_back({Moment::update, unit, State::parameter, form(Placement::sharded, stored, State::parameter),
                    form(Placement::replicated, stored, State::parameter), Wire::native});
  }

  Form form(Placement placement, Dtype dtype, State state) const { return {placement, dtype, plan_[state].tier}; }

  const Plan& plan_;
  const Layout& layout_;
  Movement movement_;
  std::vector<Transition> all_;
};

}  // namespace

Collective Transition::collective() const {
  return from.placement == Placement::partial ? Collective::reduce_scatter : Collective::all_gather;
}

std::int64_t Transition::bytes(const UnitLayout& layout) const {
  return wire == Wire::native ? layout.shard_length() * size_of(from.dtype) : slice_bytes(layout, wire);
}

std::string describe(const Row& row) {
  std::string words;
  for (const auto column : {name(row.placement), name(row.between), name(row.tier), name(row.wire)})
    words += (words.empty() ? "" : " ") + std::string(column);
  return words;
}

std::pair<std::string, std::string> places(const Row& row) {
  return {std::string(name(row.between)), std::string(name(row.placement))};
}

Movement movement(const Plan& plan) {
  Movement movement;
  movement.gathers = sharded(plan[State::parameter].placement);
  movement.reduces_each = sharded(plan[State::gradient].between);
  movement.gathers_sum = plan[State::gradient].placement == Placement::replicated;
  movement.updates_slices = sharded(plan[State::optimizer].placement);
  movement.publishes = movement.updates_slices && !movement.gathers;
  return movement;
}

std::vector<Transition> transitions(const Plan& plan, const Layout& layout) {
  if (layout.ranks() == 1) return {};
  return List(plan, layout).all();
}

Held held_at_rest(const Plan& plan, State state, const UnitLayout& unit, int rank) {
  return held(plan[state].placement, unit, rank);
}

Held held_between(const Plan& plan, State state, const UnitLayout& unit, int rank) {
  return held(plan[state].between, unit, rank);
}

bool divided_between(const Plan& plan, State state) {
  return sharded(plan[state].between);
}

}  // namespace zero
