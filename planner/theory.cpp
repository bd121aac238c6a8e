#include "planner/theory.h"

#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "partition/transitions.h"
#include "zero/estimate.h"

namespace planner {
namespace {

using zero::State;

// Three digits at most.
std::string number(double value) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.begin(), digits.end(), value, std::chars_format::general, 3).ptr};
}

std::string times_psi(double factor) {
  return (factor == 1 ? "" : number(factor) + " ") + "Ψ";
}

struct Terms {
  double whole = 0;    // bytes a parameter that every rank holds
  double divided = 0;  // that the ranks share

  void add(int among, double bytes) { (among > 1 ? divided : whole) += bytes; }
  std::string text() const {
    const std::string part = times_psi(divided) + " / N";
    if (divided == 0) return times_psi(whole);
    return whole == 0 ? part : times_psi(whole) + " + " + part;
  }
  double bytes(double parameters, int ranks) const { return parameters * (whole + divided / ranks); }
};

// A model of one unit, of which everything else is a multiple.
zero::Layout one_unit(const zero::Plan& plan, int ranks) {
  const std::vector<zero::ParameterSpec> parameter{
      {.name = "parameter", .numel = 1, .dtype = plan.compute_dtype(), .unit = "unit"}};
  return zero::Layout(parameter, ranks);
}

double times(const zero::Transition& transition, const zero::Plan& plan) {
  if (transition.when == zero::Moment::use) return 2.0 * plan.accumulate();
  return transition.when == zero::Moment::gradient ? plan.accumulate() : 1;
}

}  // namespace

Theory theory_of(const zero::Plan& plan, std::int64_t parameters, int ranks, double held) {
  const zero::Dtype stored = plan.compute_dtype();
  const auto psi = static_cast<double>(parameters);
  const auto bytes_of = [](zero::Dtype dtype) { return static_cast<double>(size_of(dtype)); };
  Terms terms;
  terms.add(divided_among(plan, State::parameter, ranks), bytes_of(stored));
  terms.add(divided_among(plan, State::gradient, ranks),
            bytes_of(plan.gradient_dtype(stored)) * accumulation_levels(plan));
  terms.add(divided_among(plan, State::optimizer, ranks), held);
  double elements = 0, bytes = 0;
  for (const zero::Transition& each : transitions(plan, one_unit(plan, ranks))) {
    elements += times(each, plan);
    bytes += times(each, plan) * bytes_of(each.from.dtype);
  }
  const double exchanged = psi * bytes * (ranks - 1) / ranks;
  return {terms.text(), std::llround(terms.bytes(psi, ranks)), times_psi(elements), std::llround(exchanged)};
}

int divided_among(const zero::Plan& plan, zero::State state, int ranks) {
  return divided_between(plan, state) ? ranks : 1;
}

bool reduces_each(const zero::Plan& plan) {
  return zero::movement(plan).reduces_each;
}

std::pair<std::string, std::string> places_of(const zero::Plan& plan, zero::State state) {
  return places(plan[state]);
}

}  // namespace planner
