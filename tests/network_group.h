// Threads as ranks over the library's own transport, each pair joined by a stream of the system's.
#pragma once

#include <sys/socket.h>

#include <tuple>
#include <utility>

#include "comm/net/network.h"
#include "comm_fixture.h"

namespace zero::test {

// The ends of a stream, which do not block.
inline std::pair<Descriptor, Descriptor> stream_pair() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
    throw CommError("no descriptor is left for the ranks' streams");
  return {Descriptor(pair[0]), Descriptor(pair[1])};
}

// Who each rank is to the others, with its end of a stream to each of them.
inline std::vector<std::vector<LinkedRank>> stream_ends(int size) {
  std::vector<std::vector<LinkedRank>> ends(static_cast<std::size_t>(size));
  for (auto& of_rank : ends)
    for (int peer = 0; peer < size; ++peer) of_rank.push_back({"rank " + std::to_string(peer), Descriptor()});
  for (std::size_t a = 0; a < ends.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) std::tie(ends[a][b].stream, ends[b][a].stream) = stream_pair();
  return ends;
}

// Of the links' ranks from `first` on, each `step`th.
inline MakeRank network_of(const std::shared_ptr<std::vector<std::shared_ptr<Links>>>& links, const std::string& name,
                           int first, int step, int size, const MessageOptions& options) {
  std::vector<int> members;
  for (int rank = 0; rank < size; ++rank) members.push_back(first + rank * step);
  return [=](int rank) {
    auto& mine = (*links)[static_cast<std::size_t>(members[static_cast<std::size_t>(rank)])];
    return network_communicator(mine, name, members, rank, options);
  };
}

inline std::shared_ptr<std::vector<std::shared_ptr<Links>>> linked_threads(int size) {
  auto links = std::make_shared<std::vector<std::shared_ptr<Links>>>();
  for (auto& ends : stream_ends(size)) links->push_back(std::make_shared<Links>(std::move(ends)));
  return links;
}

inline MakeRank network_on_hosts(int size, Timeout timeout, int ranks_per_host) {
  const auto links = linked_threads(size);
  const auto make = network_of(links, "all", 0, 1, size, {.timeout = timeout, .hosts = host_map(size, ranks_per_host)});
  return [=](int rank) {
    auto group = make(rank);
    (*links)[static_cast<std::size_t>(rank)].reset();  // which the group holds
    return group;
  };
}

inline MakeRank network_group(int size, Timeout timeout) {
  return network_on_hosts(size, timeout, 0);
}

inline MakeRank network_on_pairs(int size, Timeout timeout) {
  return network_on_hosts(size, timeout, 2);
}

// One operation of each sort, of few bytes and of many.
inline void exchange(const Communicator& c, std::int64_t count) {
  for (int round = 0; round < 2; ++round) {
    std::vector<Array> all;
    for (int rank = 0; rank < c.size(); ++rank) all.push_back(random_array(Dtype::f32, count * c.size(), rank));
    const Array& mine = all[static_cast<std::size_t>(c.rank())];
    Array sum(Dtype::f32, count), whole(Dtype::f32, count * c.size());
    c.reduce_scatter(Array(mine).view(), sum.view()).wait();
    c.all_gather(sum.view(), whole.view()).wait();
    EXPECT_EQ(whole, reference_sum(all));
  }
}

inline constexpr Backend kNetwork{"tcp", network_group, Timeout(200), 140'003, 65'536};
inline constexpr Backend kNetworkOnPairs{"tcpOnPairs", network_on_pairs, Timeout(200), 140'003, 65'536, 2};

}  // namespace zero::test
