#include "comm/hosts.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

namespace zero::hosts_test {

void expect_hosts(const std::vector<std::string>& identities, int hosts, int ranks_per_host) {
  const Hosts found = Hosts::of(identities);
  EXPECT_EQ(found.hosts, hosts);
  EXPECT_EQ(found.ranks_per_host, ranks_per_host);
  EXPECT_EQ(found.size(), static_cast<int>(identities.size()));
}

TEST(Hosts, AreTheRunsOfEqualIdentities) {
  expect_hosts({"a"}, 1, 1);
  expect_hosts({"a", "a", "a"}, 1, 3);
  expect_hosts({"b", "b", "a", "a"}, 2, 2);
  expect_hosts({"c", "c", "c", "a", "a", "a"}, 2, 3);
  expect_hosts({"c", "a", "b"}, 3, 1);
}

TEST(Hosts, CountEachRankWhereTheyDifferInSize) {
  expect_hosts({"a", "a", "b"}, 3, 1);
  expect_hosts({"a", "b", "b"}, 3, 1);
  expect_hosts({"a", "a", "a", "b"}, 4, 1);
  expect_hosts({"a", "a", "b", "b", "c"}, 5, 1);
}

TEST(Hosts, CountEachRankWhereTheyInterleave) {
  expect_hosts({"a", "b", "a", "b"}, 4, 1);
  expect_hosts({"a", "b", "b", "a"}, 4, 1);
  expect_hosts({"a", "a", "b", "c", "b", "c"}, 6, 1);
}

TEST(Hosts, NumberTheirRanksHostByHost) {
  const Hosts hosts{3, 2};
  for (int rank = 0; rank < hosts.size(); ++rank) {
    EXPECT_EQ(hosts.host(rank), rank / 2);
    EXPECT_EQ(hosts.local(rank), rank % 2);
  }
}

TEST(HostMap, KnowsWhoIsOnAnotherHostInGroupsOfAnyShape) {
  const std::vector<std::string> identities{"a", "b", "a", "c", "a"};
  const HostMap map(identities);
  EXPECT_FALSE(map.apart(0, 4));
  EXPECT_TRUE(map.apart(0, 1));
  EXPECT_EQ(map.topology(0), (Topology{3, false, 0}));
  EXPECT_EQ(map.topology(3), (Topology{1, false, 3}));
  const std::vector<int> members{3, 2, 0};
  const HostMap some = map.of(members);
  EXPECT_TRUE(some.apart(0, 1));
  EXPECT_FALSE(some.apart(1, 2));
  EXPECT_EQ(some.topology(2), (Topology{2, false, 1}));
  EXPECT_FALSE(HostMap().of(members).apart(0, 1));
  EXPECT_EQ(HostMap().topology(1), Topology{});
}

// The identity that a child sees which first calls `prepare`; empty when that fails.
template <class Prepare>
std::string identity_in_child(Prepare prepare) {
  int ends[2];
  if (::pipe(ends) != 0) return "";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string identity = prepare() ? host_identity() : "";
    ::_exit(::write(ends[1], identity.data(), identity.size()) < 0);
  }
  ::close(ends[1]);
  std::string text(256, '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(::read(ends[0], text.data(), text.size()), 0)));
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

TEST(HostIdentity, IsTheSameForProcessesOfOneHost) {
  EXPECT_GT(host_identity().size(), 2u);
  EXPECT_EQ(host_identity(), host_identity());
  EXPECT_EQ(identity_in_child([] { return true; }), host_identity());
}

TEST(HostIdentity, DiffersBetweenNetworkNamespaces) {
  const std::string other = identity_in_child([] { return ::unshare(CLONE_NEWNET) == 0; });
  if (other.empty()) GTEST_SKIP() << "this user may not make a network namespace: unshare(CLONE_NEWNET) failed";
  EXPECT_NE(other, host_identity());
}

}  // namespace zero::hosts_test
