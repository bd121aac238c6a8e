#include "comm/hosts.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "base/system_random.h"

namespace zero {
namespace {

std::string first_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

std::string host_identity() {
  struct stat network {};
  const std::string kernel = first_line("/proc/sys/kernel/random/boot_id");
  const bool known = !kernel.empty() && stat("/proc/self/ns/net", &network) == 0;
  return known ? kernel + "/" + std::to_string(network.st_ino) : random_name("host-");
}

Hosts Hosts::of(std::span<const std::string> identities) {
  const int ranks = static_cast<int>(identities.size());
  const std::set<std::string> distinct(identities.begin(), identities.end());
  const int hosts = static_cast<int>(distinct.size());
  const Hosts regular{hosts, ranks / hosts};
  bool fits = regular.size() == ranks;
  for (int r = 0; fits && r < ranks; ++r)
    fits = identities[static_cast<std::size_t>(r)] ==
           identities[static_cast<std::size_t>(regular.host(r) * regular.ranks_per_host)];
  return fits ? regular : Hosts{ranks, 1};
}

HostMap::HostMap(std::span<const std::string> identities) {
  for (const std::string& each : identities)
    hosts_.push_back(static_cast<int>(std::ranges::find(identities, each) - identities.begin()));
}

HostMap::HostMap(const Hosts& hosts) {
  for (int rank = 0; rank < hosts.size(); ++rank) hosts_.push_back(hosts.host(rank));
}

HostMap HostMap::of(std::span<const int> members) const {
  HostMap some;
  if (!hosts_.empty())
    for (const int rank : members) some.hosts_.push_back(host(rank));
  return some;
}

Topology HostMap::topology(int rank) const {
  if (hosts_.empty()) return {};
  const auto ranks_of = [&](int of) { return static_cast<int>(std::ranges::count(hosts_, host(of))); };
  const int here = std::max(ranks_of(rank), 1);
  bool alike = true;
  for (int r = 0; alike && r < static_cast<int>(hosts_.size()); ++r)
    alike = host(r) == host(r / here * here) && ranks_of(r) == here;
  const auto first = static_cast<int>(std::ranges::find(hosts_, host(rank)) - hosts_.begin());
  return {.ranks_per_host = here, .first = alike ? -1 : first};
}

}  // namespace zero
