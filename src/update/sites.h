// Where the update of each unit is computed, and what its states pass through there: chosen once, when an engine is
// built. There are two at most: what is on other tiers than the device's is computed with on the host, a disk's as it
// is brought, while a share may leave units on the device, which that computes beside the host.
#pragma once

#include <optional>
#include <vector>

#include "backwards/accounts.h"
#include "memory/unit_stores.h"

namespace zero {

struct Site {
  Device& computes;
  Staging staging;
  const Store* offloaded;  // one of what a step takes that is on another tier than the device's; null: all is on it
};

class Sites {
 public:
  // Of so many units; `parameters` where they are on another tier than the device, else null.
  Sites(std::size_t units, const UnitStores& states, const UnitStores& gradients, const Store* parameters,
        Accounts& accounts);
  Sites(const Sites&) = delete;
  Sites& operator=(const Sites&) = delete;

  Site& of(int unit) const { return *by_unit_[static_cast<std::size_t>(unit)]; }
  // Of the units that do not stay.
  Site& most() { return most_; }
  const Site& most() const { return most_; }
  // Whether that is the host, the model being on a device.
  bool on_host() const { return on_host_; }
  // Whether the device computes the unit's step, beside the host, which computes others'.
  bool overlaps_host(int unit) const { return on_host_ && &of(unit) != &most_; }
  // What a passage over the units' stored parameters goes through: they are computed with where they lie, or, on a
  // disk, where the update is.
  Staging& of_parameters() { return on_host_ && resident_ ? resident_->staging : most_.staging; }

 private:
  bool on_host_;
  Site most_;
  std::optional<Site> resident_;
  std::vector<Site*> by_unit_;
};

}  // namespace zero
