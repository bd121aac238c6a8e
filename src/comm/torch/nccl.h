// NCCL by LibTorch's c10d, for memory of CUDA devices. In a build without CUDA only a complaint.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/hosts.h"
#include "zero/communicator.h"

namespace zero {

struct NcclOptions {
  std::chrono::milliseconds timeout{};
  int device = 0;      // of this rank
  HostMap hosts = {};  // which ranks share one
};

// Whether this build has it.
bool has_nccl();
// Of a device of this process, as no other device of the host has it.
std::uint64_t device_identity(int device);

// Joins `size` ranks that meet in `store`. Sums have the order and the bits of the other backends.
// Throws ConfigError in a build without NCCL.
std::shared_ptr<CommunicatorImpl> nccl_communicator(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                    const NcclOptions& options);

}  // namespace zero
