#include "partition/wire.h"

#include "base/sum_tree.h"

namespace zero {
namespace {

struct Received {
  std::int64_t within = 0, across = 0;  // sums, of ranks on this host and on others
};

// What the ranks of a group but this one bring, of which `here` are neighbours from `first` on.
Received brought(const GroupSum& sum, int here, int first, int rank) {
  if (sum.single()) return {here - 1, sum.size() - here};
  Received received;
  for (int peer = first; peer < first + here; ++peer)
    if (peer != rank) received.within += sum.brought(peer);
  received.across = sum.brought() - received.within - sum.brought(rank);
  return received;
}

}  // namespace

Moved moved_by(Collective collective, int size, const Topology& topology, std::int64_t bytes, std::int64_t sum,
               const Leaves& leaves, int rank) {
  const int here = topology.ranks_per_host == 0 ? size : topology.ranks_per_host;
  const int hosts = size / here, first = topology.first < 0 ? rank / here * here : topology.first;
  const bool sums = collective == Collective::reduce_scatter;
  const GroupSum all(sums ? leaves : Leaves{}, size);
  const bool levels = sums || collective == Collective::all_gather;
  if (!topology.two_levels || !levels || (sums && !all.less_by_groups(here, bytes, sum))) {
    const Received received = brought(all, here, first, rank);
    return {.bytes = (received.within + received.across) * bytes, .across_hosts = received.across * bytes};
  }
  const GroupSum of_host(all.within(rank / here, here), here), of_hosts(all.of_groups(here), hosts);
  const std::int64_t within = hosts * bytes * (sums ? brought(of_host, here, 0, rank % here).within : here - 1);
  const std::int64_t across = sums ? sum * brought(of_hosts, 1, rank / here, rank / here).across : bytes * (hosts - 1);
  return {.bytes = within + across, .across_hosts = across};
}

}  // namespace zero
