#include "theory.h"

#include <cmath>

#include "format.h"
#include "zero/estimate.h"

namespace cli {
namespace {

using zero::Placement;
using zero::State;

std::string number(double value) {
  return significant(value, 3);
}

std::string times_psi(double factor) {
  return (factor == 1 ? "" : number(factor) + " ") + "Ψ";
}

struct Terms {
  double whole = 0;    // bytes a parameter that every rank holds
  double sharded = 0;  // that the ranks share

  void add(Placement placement, double bytes) { (placement == Placement::sharded ? sharded : whole) += bytes; }
  std::string text() const {
    const std::string part = times_psi(sharded) + " / N";
    if (sharded == 0) return times_psi(whole);
    return whole == 0 ? part : times_psi(whole) + " + " + part;
  }
  double bytes(double parameters, int ranks) const { return parameters * (whole + sharded / ranks); }
};

struct Volume {
  double elements = 0;  // for each parameter
  double bytes = 0;

  void add(double times, zero::Dtype dtype) {
    elements += times;
    bytes += times * static_cast<double>(size_of(dtype));
  }
};

Volume volume_of(const zero::Plan& plan) {
  const zero::Dtype stored = plan.compute_dtype();
  const bool each = plan[State::gradient].between == Placement::sharded;
  const double micro_batches = plan.accumulate();
  Volume volume;
  volume.add(each ? micro_batches : 1, plan.reduction_dtype(stored));
  if (plan[State::gradient].placement != Placement::sharded) volume.add(1, plan.gradient_dtype(stored));
  if (plan[State::parameter].placement == Placement::sharded) {
    volume.add(2 * micro_batches, stored);
  } else if (plan[State::optimizer].placement == Placement::sharded) {
    volume.add(1, stored);
  }
  return volume;
}

}  // namespace

Theory theory_of(const zero::Plan& plan, std::int64_t parameters, int ranks, double held) {
  const zero::Dtype stored = plan.compute_dtype();
  const auto psi = static_cast<double>(parameters);
  Terms terms;
  terms.add(plan[State::parameter].placement, static_cast<double>(size_of(stored)));
  terms.add(plan[State::gradient].between,
            static_cast<double>(size_of(plan.gradient_dtype(stored)) * accumulation_levels(plan)));
  terms.add(plan[State::optimizer].placement, held);
  const Volume volume = volume_of(plan);
  const double exchanged = psi * volume.bytes * (ranks - 1) / ranks;
  return {terms.text(), std::llround(terms.bytes(psi, ranks)), times_psi(volume.elements), std::llround(exchanged)};
}

}  // namespace cli
