// Ranks on several hosts: inside a host by one group, between hosts by another, so that each byte
// crosses the network once a host and not once a rank. Operations are complete when they return.
#pragma once

#include <memory>

#include "comm/hosts.h"
#include "zero/communicator.h"

namespace zero {

struct Levels {
  std::shared_ptr<CommunicatorImpl> all;     // every rank
  std::shared_ptr<CommunicatorImpl> inside;  // of this host
  std::shared_ptr<CommunicatorImpl> across;  // of this rank's number, one a host
};

// `levels` has the shape of `hosts`. Gathers and reductions take two levels, these along the one tree of the sum: a
// host sends the sums of the largest nodes that cover its leaves. Everything else goes by `all`, and reductions where
// those sums, which are wider, would be more bytes than what is added up. Slices travel in pieces, of which those of
// all ranks take `staging` bytes.
std::shared_ptr<CommunicatorImpl> two_level_communicator(Levels levels, const Hosts& hosts,
                                                         std::int64_t staging = std::int64_t{2} << 20);

}  // namespace zero
