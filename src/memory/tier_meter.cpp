#include "memory/tier_meter.h"

#include <optional>

namespace zero {
namespace {

thread_local int apart = 0;  // how many of them live

std::optional<State> state_of(Owner owner) {
  switch (owner) {
    case Owner::parameter: return State::parameter;
    case Owner::gradient: return State::gradient;
    case Owner::optimizer: return State::optimizer;
    case Owner::activation: return State::activation;
    default: return {};
  }
}

}  // namespace

TierMeter::Apart::Apart() {
  ++apart;
}

TierMeter::Apart::~Apart() {
  --apart;
}

void TierMeter::count(Tier tier, Owner owner, const TierTraffic::Entry& moved) {
  const std::optional<State> state = state_of(owner);
  if (tier == Tier::device || !state) return;
  const std::lock_guard lock(mutex_);
  (apart > 0 ? others_ : steps_).on(tier, *state) += moved;
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
