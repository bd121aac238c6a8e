#include "partition/wire.h"

#include "base/sum_tree.h"

namespace zero {
namespace {

struct Received {
  std::int64_t within = 0, across = 0;  // sums, of ranks on this host and on others
};

// What the ranks of a group but this one bring.
Received brought(const GroupSum& sum, int size, int here, int rank) {
  if (sum.plain()) return {here - 1, size - here};
  Received received;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    std::int64_t& from = peer / here == rank / here ? received.within : received.across;
    from += static_cast<std::int64_t>(sum.brought(peer).size());
  }
  return received;
}

}  // namespace

Moved moved_by(Collective collective, int size, const Topology& topology, std::int64_t bytes, std::int64_t sum,
               const Leaves& leaves, int rank) {
  const int here = topology.ranks_per_host == 0 ? size : topology.ranks_per_host;
  const int hosts = size / here;
  const bool sums = collective == Collective::reduce_scatter;
  const GroupSum all(sums ? leaves : Leaves{}, size);
  if (!topology.two_levels || (sums && !all.less_by_groups(here, bytes, sum))) {
    const Received received = brought(all, size, here, rank);
    return {.bytes = (received.within + received.across) * bytes, .across_hosts = received.across * bytes};
  }
  const GroupSum of_host(all.within(rank / here, here), here), of_hosts(all.of_groups(here), hosts);
  const std::int64_t within = hosts * bytes * (sums ? brought(of_host, here, here, rank % here).within : here - 1);
  const std::int64_t across = sums ? sum * brought(of_hosts, hosts, 1, rank / here).across : bytes * (hosts - 1);
  return {.bytes = within + across, .across_hosts = across};
}

}  // namespace zero
