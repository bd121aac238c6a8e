// Bytes of parameters on the wire. No torch.
#pragma once

#include <algorithm>

#include "base/float8_blocks.h"
#include "zero/layout.h"
#include "zero/plan.h"

namespace zero {

// fp64 parameters travel as they are.
inline Wire wire_of(Wire wire, Dtype dtype) {
  return dtype == Dtype::f64 ? Wire::native : wire;
}

// Of a slice of `count` elements.
inline std::int64_t coded_bytes(std::int64_t count, Dtype dtype, Wire wire) {
  return wire_of(wire, dtype) == Wire::fp8 ? blocks_bytes(count) : count * size_of(dtype);
}

// For the codes of the largest unit, of all ranks; 0 where parameters travel as they are.
inline std::int64_t wire_room(const Layout& layout, const Plan& plan) {
  const Row& row = plan[State::parameter];
  std::int64_t bytes = 0;
  if (row.placement != Placement::sharded || row.wire != Wire::fp8) return bytes;
  for (const UnitLayout& unit : layout.units())
    if (wire_of(row.wire, unit.dtype()) == Wire::fp8)
      bytes = std::max(bytes, layout.ranks() * coded_bytes(unit.shard_length(), unit.dtype(), row.wire));
  return bytes;
}

}  // namespace zero
