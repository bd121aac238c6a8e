// Bytes that move between the device and the other tiers, by state, as they are asked for: not the pages around them.
// Those of the host go over its link to a device, read up to it, written down; those of a disk there go both ways.
#pragma once

#include <array>
#include <cstdint>

#include "zero/plan.h"

namespace zero {

struct TierTraffic {
  struct Entry {
    std::int64_t read = 0;     // from the tier
    std::int64_t written = 0;  // to it
    std::int64_t total() const { return read + written; }
    Entry& operator+=(const Entry& other) {
      read += other.read;
      written += other.written;
      return *this;
    }
    Entry& operator-=(const Entry& other) {
      read -= other.read;
      written -= other.written;
      return *this;
    }
    bool operator==(const Entry&) const = default;
  };

  std::array<std::array<Entry, kStates>, kTiers - 1> below{};  // of the host and of disks

  // Of a tier that is not the device's.
  Entry& on(Tier tier, State state) {
    return below[static_cast<std::size_t>(tier) - 1][static_cast<std::size_t>(state)];
  }
  const Entry& on(Tier tier, State state) const {
    return below[static_cast<std::size_t>(tier) - 1][static_cast<std::size_t>(state)];
  }
  // Of all states.
  Entry on(Tier tier) const {
    Entry sum;
    for (const Entry& entry : below[static_cast<std::size_t>(tier) - 1]) sum += entry;
    return sum;
  }
  TierTraffic& operator+=(const TierTraffic& other) {
    for (std::size_t tier = 0; tier < below.size(); ++tier)
      for (std::size_t state = 0; state < kStates; ++state) below[tier][state] += other.below[tier][state];
    return *this;
  }
  TierTraffic& operator-=(const TierTraffic& other) {
    for (std::size_t tier = 0; tier < below.size(); ++tier)
      for (std::size_t state = 0; state < kStates; ++state) below[tier][state] -= other.below[tier][state];
    return *this;
  }
  bool operator==(const TierTraffic&) const = default;
};

// That of a step, by when it moves.
struct TierMoves {
  TierTraffic use;       // parameters, for the micro-batches' operators
  TierTraffic backward;  // gradients, as they are added up
  TierTraffic vote;      // likewise, for their norm
  TierTraffic update;

  TierTraffic step() const {
    TierTraffic sum = use;
    for (const TierTraffic* each : {&backward, &vote, &update}) sum += *each;
    return sum;
  }
  bool operator==(const TierMoves&) const = default;
};

}  // namespace zero
