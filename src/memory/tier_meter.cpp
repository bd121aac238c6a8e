#include "memory/tier_meter.h"

#include <optional>

namespace zero {
namespace {

thread_local int booked_apart = 0;  // how many of them live

std::optional<State> state_of(Owner owner) {
  switch (owner) {
    case Owner::parameter:
    case Owner::gathered: return State::parameter;
    case Owner::gradient:
    case Owner::reduction: return State::gradient;
    case Owner::optimizer: return State::optimizer;
    case Owner::activation: return State::activation;
    default: return {};
  }
}

}  // namespace

TierMeter::SetupTraffic::SetupTraffic() {
  ++booked_apart;
}

TierMeter::SetupTraffic::~SetupTraffic() {
  --booked_apart;
}

void TierMeter::count(Tier tier, Owner owner, const TierTraffic::Entry& moved) {
  const std::optional<State> state = state_of(owner);
  if (!state) return;
  const std::lock_guard lock(mutex_);
  TierTraffic& of = booked_apart > 0 ? others_ : steps_;
  if (tier == Tier::device) {
    of.on(Tier::host, *state) += {.read = moved.written, .written = moved.read};
  } else {
    of.on(tier, *state) += moved;
  }
}

void TierMeter::reset() {
  const std::lock_guard lock(mutex_);
  steps_ = {};
}

TierTraffic TierMeter::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

TierTraffic TierMeter::others() const {
  const std::lock_guard lock(mutex_);
  return others_;
}

}  // namespace zero
