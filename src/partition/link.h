// What a collective brings to a rank, and over which link: the prediction of what transports count. No torch.
#pragma once

#include <bit>
#include <cstdint>

#include "zero/communicator.h"

namespace zero {

// Of an all_gather or a reduce_scatter over `size` ranks, in which each other rank has a slice of `bytes` bytes for
// this one; of `sum` bytes where ranks have added it up, which sums of two levels are when they go to another host.
inline Moved moved_by(Collective collective, int size, const Topology& topology, std::int64_t bytes, std::int64_t sum) {
  const std::int64_t here = topology.ranks_per_host == 0 ? size : topology.ranks_per_host;
  const std::int64_t hosts = size / here;
  const bool sums = collective == Collective::reduce_scatter;
  if (!topology.two_levels || (sums && !std::has_single_bit(static_cast<std::uint64_t>(here))))
    return {.bytes = (size - 1) * bytes, .across_hosts = (size - here) * bytes};
  const std::int64_t across = (hosts - 1) * (sums ? sum : bytes);
  const std::int64_t within = (here - 1) * hosts * bytes;
  return {.bytes = within + across, .across_hosts = across};
}

}  // namespace zero
