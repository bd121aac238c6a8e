// Which bytes of an estimate are on which tier.
#include "zero/estimate.h"

namespace zero {

StateBytes Estimate::on(Tier tier) const {
  // Of a state, of which so much is on its own tier where that is not the device's.
  const auto here = [&](State of, std::int64_t all, std::int64_t below, std::int64_t stays) {
    const Tier its = tiers[static_cast<std::size_t>(of)];
    if (its == Tier::device) return tier == its ? all : 0;
    return (tier == its ? below : 0) + (tier == Tier::device ? stays : 0);
  };
  const std::int64_t apart = tier == Tier::host ? late : 0;
  return {
      here(State::parameter, state.parameter - late, state.parameter - late - staying.parameter, staying.parameter) +
          apart,
      here(State::gradient, state.gradient, state.gradient - staying.gradient, staying.gradient),
      here(State::optimizer, state.optimizer, optimizer_below, staying.optimizer)};
}

}  // namespace zero
