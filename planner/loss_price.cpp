#include "planner/loss_price.h"

#include <algorithm>
#include <array>

#include "base/codec.h"
#include "partition/routes.h"

namespace planner {
namespace {

using zero::Wire;

constexpr std::array kMeasured{LossPrice{Wire::int8, Wire::int4, false, .17, .33},
                               LossPrice{Wire::int8, Wire::int4, true, .41, .62},
                               LossPrice{Wire::int4_differences, Wire::int4_hadamard, false, .10, .35},
                               LossPrice{Wire::int4_differences, Wire::int4_hadamard, true, .29, .86},
                               LossPrice{Wire::int4_differences, Wire::int4, false, .05, .52},
                               LossPrice{Wire::int4, Wire::int4_hadamard, false, 3.42, 3.51}};

}  // namespace

std::span<const LossPrice> loss_prices() {
  return kMeasured;
}

bool rounds(const zero::Plan& plan, const zero::MeshShape& mesh) {
  const zero::Plan here = plan.on(mesh);
  const bool gathered = mesh.size(zero::Axis::data) > 1 && zero::Routes(here).codec() != Wire::native;
  const bool reduced = mesh.size(zero::Axis::replica) > 1 && zero::has_codec(here[zero::State::gradient].wire);
  return gathered || reduced || (here.activation_budget() && here[zero::State::activation].wire != Wire::native);
}

std::optional<LossPrice> loss_price(const zero::Plan& plan) {
  const auto found = std::ranges::find_if(kMeasured, [&](const LossPrice& each) {
    return each.feeds_back == plan.error_feedback() && each.gathered == plan[zero::State::parameter].wire &&
           each.reduced == plan[zero::State::gradient].wire && plan[zero::State::activation].wire == Wire::native;
  });
  return found == kMeasured.end() ? std::nullopt : std::optional(*found);
}

}  // namespace planner
