// Which ranks share a host, and thus memory, and what comes from which.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "zero/communicator.h"

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

// Which host each rank of a group is on, whatever the group's shape. By default all are on one.
class HostMap {
 public:
  HostMap() = default;
  explicit HostMap(std::span<const std::string> identities);  // by rank
  explicit HostMap(const Hosts& hosts);

  bool apart(int a, int b) const { return !hosts_.empty() && host(a) != host(b); }
  HostMap of(std::span<const int> members) const;  // a group of these ranks, in that order
  Topology topology(int rank) const;

 private:
  int host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }

  std::vector<int> hosts_;  // by rank, any numbers; empty: one host
};

// What an operation brings to a rank of a group, as it comes.
class Tally {
 public:
  Tally(HostMap hosts, int rank) : hosts_(std::move(hosts)), rank_(rank) {}

  void from(int peer, std::int64_t bytes, bool in_place = false) {
    if (peer == rank_) return;
    moved_.bytes += bytes;
    if (hosts_.apart(peer, rank_)) moved_.across_hosts += bytes;
    if (in_place) moved_.in_place += bytes;
  }
  void broadcast(std::int64_t bytes) { moved_.bytes += bytes; }  // by this rank, to some
  Moved take() { return std::exchange(moved_, {}); }

  const HostMap& hosts() const { return hosts_; }

 private:
  HostMap hosts_;
  int rank_;
  Moved moved_;
};

}  // namespace zero
