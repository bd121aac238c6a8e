// Threads as ranks of several hosts, joined as processes are: by streams between hosts, in shared memory inside.
#pragma once

#include <memory>
#include <vector>

#include "comm/two_level.h"
#include "network_group.h"
#include "shared_group.h"

namespace zero::test {

// The ranks of one host, from `first` on.
inline MakeRank shared_group_of(const std::shared_ptr<std::vector<std::shared_ptr<Links>>>& links, int first,
                                const Hosts& hosts, Timeout limit) {
  return shared_group_with(hosts.ranks_per_host, limit, [=](int local, SharedMemoryOptions& options) {
    options.waits = (*links)[static_cast<std::size_t>(first + local)];
    for (int rank = 0; rank < hosts.ranks_per_host; ++rank) options.numbers.push_back(first + rank);
  });
}

inline MakeRank over_two_levels(const Hosts& hosts, Timeout limit, std::int64_t staging = std::int64_t{2} << 20) {
  const auto links = linked_threads(hosts.size());
  const MakeRank all = network_of(links, "all", 0, 1, hosts.size(), {.timeout = limit, .hosts = HostMap(hosts)});
  std::vector<MakeRank> inside, across;
  for (int h = 0; h < hosts.hosts; ++h)
    inside.push_back(shared_group_of(links, h * hosts.ranks_per_host, hosts, limit));
  for (int l = 0; l < hosts.ranks_per_host; ++l)
    across.push_back(network_of(links, "across", l, hosts.ranks_per_host, hosts.hosts,
                                {.timeout = limit, .hosts = HostMap(Hosts{hosts.hosts, 1})}));
  return [=](int rank) {
    const int host = hosts.host(rank), local = hosts.local(rank);
    auto everyone = all(rank), here = inside[static_cast<std::size_t>(host)](local);
    Levels levels{everyone, here, across[static_cast<std::size_t>(local)](host)};
    (*links)[static_cast<std::size_t>(rank)].reset();  // which the groups hold
    return two_level_communicator(std::move(levels), hosts, staging);
  };
}

}  // namespace zero::test
