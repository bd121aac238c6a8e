// Threads as ranks over Gloo.
#pragma once

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/torch/c10d.h"
#include "comm_fixture.h"

namespace zero::test {

inline MakeRank gloo_on_hosts(int size, Timeout timeout, int ranks_per_host) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  return [=](int rank) {
    return gloo_communicator(store, rank, size, {.timeout = timeout, .hosts = host_map(size, ranks_per_host)});
  };
}

inline MakeRank gloo_group(int size, Timeout timeout) {
  return gloo_on_hosts(size, timeout, 0);
}

inline MakeRank gloo_on_pairs(int size, Timeout timeout) {
  return gloo_on_hosts(size, timeout, 2);
}

inline constexpr Backend kGloo{"gloo", gloo_group, Timeout(3000), 140'003, 65'536};
inline constexpr Backend kGlooOnPairs{"glooOnPairs", gloo_on_pairs, Timeout(3000), 140'003, 65'536, 2};

}  // namespace zero::test
