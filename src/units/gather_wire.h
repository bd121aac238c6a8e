// How the slices of a sharded unit travel to every rank: as they are stored, or in FP8 (Wire::fp8), E4M3 in blocks of
// kWireBlock values with a power of two each, one byte. Then all ranks, the owner too, compute with what was decoded.
//
// Thread-safety: the exchange's thread.
#pragma once

#include "backwards/accounts.h"
#include "comm/groups.h"
#include "partition/wire.h"
#include "zero/layout.h"
#include "zero/plan.h"

namespace zero {

class GatherWire {
 public:
  // `plan` as it is on this number of ranks. Room for the largest unit's codes, if there are any: what is not gathered
  // has none.
  GatherWire(const Layout& layout, const Plan& plan, Accounts& accounts);

  bool native() const { return wire_ == Wire::native; }
  // True when values arrive as they were sent.
  bool exact(const UnitLayout& unit) const { return wire_of(wire_, unit.dtype()) == Wire::native; }
  // `shard` of every rank, its slice over the axis along which parameters are sharded, into `whole`; `exactly` whatever
  // the wire.
  void gather(const Groups& groups, const UnitLayout& unit, View shard, View whole, bool exactly) const;

 private:
  Device& device_;
  Wire wire_;
  Axis over_;
  Buffer codes_;
};

}  // namespace zero
