#include "comm/two_level.h"

#include "comm/threads.h"
#include "comm_fixture.h"

namespace zero::test::two_level_test {

constexpr std::int64_t kStaging = 1 << 16;  // bytes: pieces as many as of the usual ones, and smaller

// Three groups for each rank, all of threads, which a test may wrap.
class Cluster {
 public:
  using Ranks = std::vector<std::shared_ptr<CommunicatorImpl>>;

  Cluster(const Hosts& hosts, Timeout timeout)
      : hosts_(hosts), all_(thread_communicators(hosts.size(), timeout, HostMap(hosts))) {
    for (int h = 0; h < hosts.hosts; ++h) inside_.push_back(thread_communicators(hosts.ranks_per_host, timeout));
    for (int l = 0; l < hosts.ranks_per_host; ++l)
      across_.push_back(thread_communicators(hosts.hosts, timeout, HostMap(Hosts{hosts.hosts, 1})));
  }

  const Hosts& hosts() const { return hosts_; }

  Levels take(int rank) {
    const auto host = static_cast<std::size_t>(hosts_.host(rank)), local = static_cast<std::size_t>(hosts_.local(rank));
    return {std::move(all_[static_cast<std::size_t>(rank)]), std::move(inside_[host][local]),
            std::move(across_[local][host])};
  }

 private:
  Hosts hosts_;
  Ranks all_;
  std::vector<Ranks> inside_, across_;
};

template <int ranks_per_host>
MakeRank hosts_of(int size, Timeout timeout) {
  const auto cluster = std::make_shared<Cluster>(Hosts{size / ranks_per_host, ranks_per_host}, timeout);
  return [cluster](int rank) { return two_level_communicator(cluster->take(rank), cluster->hosts(), kStaging); };
}

template <int ranks_per_host>
constexpr Backend of(const char* name) {
  return {name, hosts_of<ranks_per_host>, Timeout(50), 14'003, 0, ranks_per_host};
}

const auto kClusters =
    testing::Values(std::tuple{of<2>("pairs"), 2}, std::tuple{of<2>("pairs"), 4}, std::tuple{of<2>("pairs"), 6},
                    std::tuple{of<3>("triples"), 6}, std::tuple{of<1>("singles"), 4}, std::tuple{of<4>("fours"), 8});

std::string title(const testing::TestParamInfo<CommunicatorSuite::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + "of" + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(TwoLevels, CommunicatorSuite, kClusters, title);

class TwoLevel : public CommunicatorSuite {
 protected:
  // Elements that travel in one piece, of `element` bytes.
  std::int64_t piece(std::int64_t element) const { return kStaging / size() / element; }

  std::vector<std::int64_t> lengths(Dtype dtype) const {
    const std::int64_t step = piece(size_of(dtype));
    return {step - 1, step, step + 1, 2 * step + 3};
  }
};

INSTANTIATE_TEST_SUITE_P(Hosts, TwoLevel, kClusters, title);

constexpr Dtype kTravelling[] = {Dtype::bf16, Dtype::f32, Dtype::i64};

TEST_P(TwoLevel, GathersSlicesLongerThanAPiece) {
  for (Dtype dtype : kTravelling)
    for (std::int64_t count : lengths(dtype)) {
      const auto all = every_rank(dtype, count);
      const Array expected = concatenated(all);
      run([&](const Communicator& c) {
        Array shard = all[static_cast<std::size_t>(c.rank())];
        Array whole(dtype, count * size());
        c.all_gather(shard.view(), whole.view()).wait();
        EXPECT_TRUE(whole == expected) << count << " " << name(dtype);
      });
    }
}

TEST_P(TwoLevel, SumsSlicesLongerThanAPiece) {
  for (Dtype dtype : kTravelling)
    for (std::int64_t count : lengths(accumulation(dtype))) {
      const auto all = every_rank(dtype, count * size());
      const Array expected = reference_sum(all);
      run([&](const Communicator& c) {
        Array whole = all[static_cast<std::size_t>(c.rank())];
        Array shard(accumulation(dtype), count);
        c.reduce_scatter(whole.view(), shard.view()).wait();
        EXPECT_TRUE(shard == part(expected, c.rank() * count, count)) << count << " " << name(dtype);
        EXPECT_TRUE(whole == all[static_cast<std::size_t>(c.rank())]);
      });
    }
}

TEST_P(TwoLevel, GathersInPlaceWhatItSummedInPlace) {
  const std::int64_t count = 2 * piece(sizeof(float)) + 3;
  const auto all = every_rank(Dtype::f32, count * size());
  const Array expected = reference_sum(all);
  run([&](const Communicator& c) {
    Array whole = all[static_cast<std::size_t>(c.rank())];
    const View slot = whole.slice(c.rank() * count, count);
    c.reduce_scatter(whole.view(), slot).wait();
    c.all_gather(slot, whole.view()).wait();
    EXPECT_TRUE(whole == expected);
  });
}

TEST_P(TwoLevel, StaysOnTwoLevelsWhereEverybodyStaysInOrder) {
  const auto all = every_rank(Dtype::bf16, 7 * size());
  const Array expected = reference_sum(all);
  run([&](const Communicator& c) {
    EXPECT_EQ(c.backend(), "hosts");
    const Communicator same = c.split(0, c.rank()), turned = c.split(0, -c.rank());
    EXPECT_EQ(same.backend(), "hosts");
    EXPECT_EQ(turned.backend(), "threads");
    EXPECT_EQ(c.split(c.rank(), 0).size(), 1);
    Array whole = all[static_cast<std::size_t>(c.rank())], shard(Dtype::f32, 7), sums(Dtype::f32, 7 * size());
    for (const Communicator& group : {c, same, same.split(3, c.rank())}) {
      group.reduce_scatter(whole.view(), shard.view()).wait();
      group.all_gather(shard.view(), sums.view()).wait();
      EXPECT_EQ(sums, expected);
    }
  });
}

// What one rank of `hosts` receives in its three groups during a reduce_scatter and an all_gather of fp32.
struct Received {
  explicit Received(const Hosts& hosts, std::int64_t count) {
    Cluster cluster(hosts, kNoHang);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < hosts.size(); ++rank)
      threads.emplace_back([&, levels = cluster.take(rank)] {
        const Communicator c(two_level_communicator(
            {metered(levels.all, all), metered(levels.inside, inside), metered(levels.across, across)}, hosts));
        Array whole(Dtype::f32, count * hosts.size()), shard(Dtype::f32, count);
        c.reduce_scatter(whole.view(), shard.view()).wait();
        c.all_gather(shard.view(), whole.view()).wait();
      });
    for (auto& thread : threads) thread.join();
    ranks = hosts.size();
  }

  std::int64_t bytes(const TrafficMeter& meter, Collective operation) const {
    return meter.snapshot()[operation].bytes / ranks;
  }

  int ranks = 0;
  std::shared_ptr<TrafficMeter> all = std::make_shared<TrafficMeter>(), inside = std::make_shared<TrafficMeter>(),
                                across = std::make_shared<TrafficMeter>();
};

TEST(TwoLevelTraffic, CrossesTheNetworkOnceAHost) {
  const std::int64_t count = 100;
  const Received received({3, 2}, count);
  for (Collective operation : {Collective::all_gather, Collective::reduce_scatter}) {
    EXPECT_EQ(received.bytes(*received.all, operation), 0);
    EXPECT_EQ(received.bytes(*received.across, operation), (3 - 1) * count * 4);
    EXPECT_EQ(received.bytes(*received.inside, operation), (2 - 1) * 3 * count * 4);
  }
}

// The sum of three ranks is no node of the tree over all: those of two and of one are.
TEST(TwoLevelTraffic, OfHostsOfThreeIsTwoSums) {
  const std::int64_t count = 100;
  const Received received({2, 3}, count);
  EXPECT_EQ(received.bytes(*received.all, Collective::reduce_scatter), 0);
  EXPECT_EQ(received.bytes(*received.across, Collective::reduce_scatter), 2 * (2 - 1) * count * 4);
  EXPECT_EQ(received.bytes(*received.inside, Collective::reduce_scatter), (3 - 1) * 2 * count * 4);
  EXPECT_EQ(received.bytes(*received.across, Collective::all_gather), (2 - 1) * count * 4);
}

// What a call says that it moved on rank 1 of `hosts`, of slices of `count` bf16 values.
template <class Call>
Moved moved_on(const Hosts& hosts, std::int64_t count, Call call) {
  Cluster cluster(hosts, kNoHang);
  Moved moved;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < hosts.size(); ++rank)
    threads.emplace_back([&, rank, levels = cluster.take(rank)] {
      const Communicator c(two_level_communicator(levels, hosts, kStaging));
      Array whole(Dtype::bf16, count * hosts.size()), shard(Dtype::bf16, count), sum(Dtype::f32, count);
      const Moved mine = completed(call(c, whole, shard, sum));
      if (rank == 1) moved = mine;
    });
  for (auto& thread : threads) thread.join();
  return moved;
}

const auto kGather = [](const Communicator& c, Array& whole, Array& shard, Array&) {
  return c.all_gather(shard.view(), whole.view());
};
const auto kReduce = [](const Communicator& c, Array& whole, Array&, Array& sum) {
  return c.reduce_scatter(whole.view(), sum.view());
};

// In pieces too, the last of them short.
TEST(TwoLevelTraffic, OfGathersIsTheSliceOfEachOtherHostAcrossAndTheRestInside) {
  for (const std::int64_t count : {std::int64_t{101}, std::int64_t{20'001}}) {
    EXPECT_EQ(moved_on({3, 2}, count, kGather), (Moved{5 * count * 2, 2 * count * 2}));
    EXPECT_EQ(moved_on({2, 3}, count, kGather), (Moved{5 * count * 2, 1 * count * 2}));
    EXPECT_EQ(moved_on({4, 1}, count, kGather), (Moved{3 * count * 2, 3 * count * 2}));
  }
}

// bf16 inside a host, its fp32 sums between hosts; on one level bf16 only, where the sums would be more bytes.
TEST(TwoLevelTraffic, OfSumsIsWiderAcrossHostsThanInside) {
  for (const std::int64_t count : {std::int64_t{101}, std::int64_t{20'001}}) {
    EXPECT_EQ(moved_on({3, 2}, count, kReduce), (Moved{3 * count * 2 + 2 * count * 4, 2 * count * 4}));
    EXPECT_EQ(moved_on({2, 4}, count, kReduce), (Moved{3 * 2 * count * 2 + 1 * count * 4, 1 * count * 4}));
    EXPECT_EQ(moved_on({2, 3}, count, kReduce), (Moved{5 * count * 2, 3 * count * 2}));
    EXPECT_EQ(moved_on({4, 1}, count, kReduce), (Moved{3 * count * 2, 3 * count * 2}));
  }
}

}  // namespace zero::test::two_level_test
