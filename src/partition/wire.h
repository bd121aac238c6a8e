// Bytes of parameters on the wire, and what a collective brings to a rank over which link: the prediction of what
// transports count. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/codec.h"
#include "base/elements.h"
#include "zero/communicator.h"
#include "zero/layout.h"
#include "zero/plan.h"

namespace zero {

// fp64 parameters travel as they are.
inline Wire wire_of(Wire wire, Dtype dtype) {
  return dtype == Dtype::f64 ? Wire::native : wire;
}

// Of a slice of `count` elements.
inline std::int64_t coded_bytes(std::int64_t count, Dtype dtype, Wire wire) {
  const Wire codec = wire_of(wire, dtype);
  return has_codec(codec) ? bytes_of_codes(codec, count) : count * size_of(dtype);
}

// For the codes of the largest unit, of all ranks; 0 where parameters travel as they are.
inline std::int64_t wire_room(const Layout& layout, const Plan& plan) {
  const Row& row = plan[State::parameter];
  std::int64_t bytes = 0;
  if (row.rest.shard != Placement::sharded || !has_codec(row.wire)) return bytes;
  for (const UnitLayout& unit : layout.units())
    if (has_codec(wire_of(row.wire, unit.dtype())))
      bytes = std::max(bytes, layout.ranks() * coded_bytes(unit.shard_length(), unit.dtype(), row.wire));
  return bytes;
}

// What a sum that crosses in codes takes: codes of each rank's addends for this one and of its own for them, and what
// is decoded, of each rank, in the dtype in which it is added up. Each begins at a multiple of kCodeAlign bytes.
struct CodedSum {
  static constexpr std::int64_t kCodeAlign = 64;

  CodedSum(std::int64_t count, Dtype kept, Wire codec, int ranks, int brought)
      : code(bytes_of_codes(codec, count)),
        sent(round_up(ranks * brought * code, kCodeAlign)),
        value(count * size_of(kept)),
        values(ranks * brought * value) {}

  std::int64_t bytes() const { return 2 * sent + values; }

  std::int64_t code;   // bytes of one addend's
  std::int64_t sent;   // of all that are sent, or arrive
  std::int64_t value;  // of one that is decoded
  std::int64_t values;
};

// What a collective brings to a rank, and over which link: the prediction of what transports count.

// Of an all_gather, an all_to_all or a reduce_scatter over `size` ranks, to the one of this number, in which each other
// rank has a slice of `bytes` bytes for it, or several, by the leaves of a sum; of `sum` bytes where ranks have added
// it up, which sums of two levels are when they go to another host.
Moved moved_by(Collective collective, int size, const Topology& topology, std::int64_t bytes, std::int64_t sum,
               const Leaves& leaves = {}, int rank = 0);

}  // namespace zero
