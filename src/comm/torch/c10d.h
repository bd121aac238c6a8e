// Gloo by LibTorch's c10d: the only file that knows its process groups. Operations run in order on
// one thread, so they are asynchronous. Slices are exchanged directly between all pairs of ranks.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/hosts.h"
#include "zero/communicator.h"

namespace zero {

struct GlooOptions {
  std::chrono::milliseconds timeout{};
  std::string address = "127.0.0.1";  // of this host, where the peers connect
  int world_rank = -1;                // what messages call this rank, where that is not its number in the group
  bool debug = false;                 // see InitOptions
  HostMap hosts = {};                 // which ranks share one
};

// Joins `size` ranks that meet in `store`, which may go away once all have returned unless the group
// is split later. Throws CommError when they do not meet in time. Works on CPU memory.
std::shared_ptr<CommunicatorImpl> gloo_communicator(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                    const GlooOptions& options);

}  // namespace zero
