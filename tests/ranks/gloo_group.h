// Threads as ranks over Gloo.
#pragma once

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/c10d.h"
#include "comm_fixture.h"

namespace zero::test {

inline MakeRank gloo_group(int size, Timeout timeout) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  return [store, size, timeout](int rank) { return gloo_communicator(store, rank, size, GlooOptions{timeout}); };
}

inline constexpr Backend kGloo{"gloo", gloo_group, Timeout(3000), 140'003};

}  // namespace zero::test
