// Which ranks share a host, and thus memory.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace zero {

// The same for two processes when they run under one kernel and in one network namespace, where they can
// share memory. Where /proc does not tell, every process counts as a host of its own.
std::string host_identity();

// Ranks of `hosts` hosts with `ranks_per_host` ranks each, host by host.
struct Hosts {
  int hosts = 1;
  int ranks_per_host = 1;

  // `identities` by rank. Where hosts have different numbers of ranks, or ranks are not numbered host by
  // host, each rank counts as a host of its own.
  static Hosts of(std::span<const std::string> identities);

  int host(int rank) const { return rank / ranks_per_host; }
  int local(int rank) const { return rank % ranks_per_host; }
  int size() const { return hosts * ranks_per_host; }
};

}  // namespace zero
