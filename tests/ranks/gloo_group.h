// Threads as ranks over Gloo.
#pragma once

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/c10d.h"
#include "comm_fixture.h"

namespace zero::test {

template <int ranks_per_host>
MakeRank gloo_on_hosts(int size, Timeout timeout) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  return [store, size, timeout](int rank) {
    return gloo_communicator(store, rank, size, {.timeout = timeout, .hosts = host_map(size, ranks_per_host)});
  };
}

inline MakeRank gloo_group(int size, Timeout timeout) {
  return gloo_on_hosts<0>(size, timeout);
}

inline constexpr Backend kGloo{"gloo", gloo_group, Timeout(3000), 140'003, 65'536};
inline constexpr Backend kGlooOnPairs{"glooOnPairs", gloo_on_hosts<2>, Timeout(3000), 140'003, 65'536, 2};

}  // namespace zero::test
