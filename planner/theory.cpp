#include "planner/theory.h"

#include <cmath>
#include <vector>

#include "base/text.h"
#include "partition/routes.h"
#include "partition/wire.h"
#include "zero/estimate.h"

namespace planner {
namespace {

using zero::State;

std::string times_psi(double factor) {
  return (factor == 1 ? "" : zero::significant(factor, 3) + " ") + "Ψ";
}

// Bytes a parameter: that every rank holds, and that the ranks of a shard group, or all of them, share.
struct Terms {
  double whole = 0, of_group = 0, of_all = 0;

  void add(const zero::Plan& plan, State state, double bytes) {
    const auto over = divided_between(plan, state);
    (!over ? whole : *over == zero::Axis::shard ? of_group : of_all) += bytes;
  }
  std::string text() const {
    std::string text;
    const auto term = [&](double bytes, const char* among) {
      if (bytes != 0) text += (text.empty() ? "" : " + ") + times_psi(bytes) + among;
    };
    term(whole, "");
    term(of_group, " / S");
    term(of_all, " / N");
    return text;
  }
  double bytes(double parameters, const zero::MeshShape& mesh) const {
    return parameters * (whole + of_group / mesh.size(zero::Axis::shard) + of_all / mesh.size(zero::Axis::data));
  }
};

// A model of one unit, of which everything else is a multiple.
zero::Layout one_unit(const zero::Plan& plan, const zero::MeshShape& mesh) {
  const std::vector<zero::ParameterSpec> parameter{
      {.name = "parameter", .numel = 1, .dtype = plan.compute_dtype(), .unit = "unit"}};
  return zero::Layout(parameter, mesh);
}

double times(const zero::Transition& transition, const zero::Plan& plan) {
  if (transition.when == zero::When::use) return 2.0 * plan.accumulate();  // and `keep` once
  return transition.when == zero::When::gradient ? plan.accumulate() : 1;
}

// Of a step: in elements, within shard groups and across them, and in bytes a parameter.
struct Volume {
  double within = 0, across = 0, bytes = 0;
  std::string text(int group) const {
    if (group == 1) return times_psi(across);
    return times_psi(within) + (across > 0 ? " + " + times_psi(across) + " / S" : "");
  }
};

Volume volume_of(const zero::Plan& plan, const zero::MeshShape& mesh) {
  const zero::Layout layout = one_unit(plan, mesh);
  const zero::UnitLayout& unit = layout.units().front();
  Volume volume;
  for (const zero::Transition& each : zero::Routes(plan).of(unit))
    for (const zero::Hop& hop : each.route.hops) {
      const int peers = mesh.size(hop.axis) - 1;
      const std::int64_t bytes = each.route.bytes(hop);
      const std::int64_t received = zero::moved_by(hop.carried_by(), peers + 1, {}, bytes, bytes, hop.leaves).bytes;
      (hop.axis == zero::Axis::replica ? volume.across : volume.within) +=
          times(each, plan) * static_cast<double>(received) / static_cast<double>(peers * bytes);
      volume.bytes += times(each, plan) * static_cast<double>(received) / static_cast<double>(unit.length());
    }
  return volume;
}

}  // namespace

Theory theory_of(const zero::Plan& plan, std::int64_t parameters, const zero::MeshShape& mesh, double held) {
  const zero::Dtype stored = plan.compute_dtype();
  const auto psi = static_cast<double>(parameters);
  const auto bytes_of = [](zero::Dtype dtype) { return static_cast<double>(size_of(dtype)); };
  Terms terms;
  terms.add(plan, State::parameter, bytes_of(stored));
  terms.add(plan, State::gradient,
            bytes_of(plan.gradient_dtype(stored)) * accumulation_levels(plan, mesh.size(zero::Axis::data)));
  terms.add(plan, State::optimizer, held);
  const Volume volume = volume_of(plan, mesh);
  return {terms.text(), std::llround(terms.bytes(psi, mesh)), volume.text(mesh.size(zero::Axis::shard)),
          std::llround(psi * volume.bytes)};
}

int divided_among(const zero::Plan& plan, zero::State state, const zero::MeshShape& mesh) {
  const auto over = divided_between(plan, state);
  return over ? mesh.size(*over) : 1;
}

bool reduces_each(const zero::Plan& plan) {
  return zero::Routes(plan).reduces_each();
}

std::pair<std::string, std::string> places_of(const zero::Plan& plan, zero::State state) {
  return places(plan[state]);
}

}  // namespace planner
