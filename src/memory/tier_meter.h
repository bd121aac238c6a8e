// Counts what is read from blocks on disks and written to them, and what goes over the link between a device and its
// host: from a block of the device's, to the host. No torch.
#pragma once

#include <cstdint>
#include <mutex>

#include "zero/ledger.h"
#include "zero/tier_traffic.h"

namespace zero {

// Thread-safe.
class TierMeter {
 public:
  // While one lives, what its thread moves belongs to no step: what is built, loaded, saved or looked at.
  class SetupTraffic {
   public:
    SetupTraffic();
    ~SetupTraffic();
    SetupTraffic(const SetupTraffic&) = delete;
    SetupTraffic& operator=(const SetupTraffic&) = delete;
  };

  // Of a block of that tier. Of the owners that a plan has a row for, with their copies on the device; those of others
  // are not counted.
  void count(Tier tier, Owner owner, const TierTraffic::Entry& moved);
  void reset();  // that of steps

  TierTraffic steps() const;
  TierTraffic others() const;

 private:
  mutable std::mutex mutex_;
  TierTraffic steps_, others_;
};

}  // namespace zero
