#include "comm/threads.h"

#include "comm_suite.h"
#include "network_group.h"
#include "shared_group.h"
#include "zero/world.h"

namespace zero::test::threads_test {

template <int ranks_per_host>
MakeRank threads_group(int size, Timeout timeout) {
  auto ranks = std::make_shared<std::vector<std::shared_ptr<CommunicatorImpl>>>(
      thread_communicators(size, timeout, host_map(size, ranks_per_host)));
  return [ranks](int rank) { return std::move((*ranks)[static_cast<std::size_t>(rank)]); };
}

constexpr Backend kThreads{"threads", threads_group<0>, Timeout(50), 20'011};
constexpr Backend kPairs{"pairs", threads_group<2>, Timeout(50), 20'011, 0, 2};
constexpr Backend kSingles{"singles", threads_group<1>, Timeout(50), 20'011, 0, 1};

std::string title(const testing::TestParamInfo<CommunicatorSuite::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(OneHost, CommunicatorSuite,
                         testing::Combine(testing::Values(kThreads, kShared, kNetwork), testing::Values(1, 2, 3, 4, 5)),
                         title);
INSTANTIATE_TEST_SUITE_P(PretendedHosts, CommunicatorSuite,
                         testing::Combine(testing::Values(kPairs, kSingles, kNetworkOnPairs),
                                          testing::Values(1, 2, 3, 4, 5)),
                         title);

// Without the decorator too, since it reads the peers' memory.
TEST(Threads, DivergingCallsFailOnEveryRank) {
  auto worlds = thread_worlds(2);
  std::vector<std::thread> threads;
  for (World& world : worlds)
    threads.emplace_back([world = std::move(world)] {
      Array values(Dtype::f32, world.rank() + 1);
      EXPECT_THROW(world.communicator().all_reduce(values.view()), CommError);
      values = Array(Dtype::f32, 5);
      world.communicator().all_reduce(values.view()).wait();
    });
  for (auto& thread : threads) thread.join();
}

TEST(Threads, WorldsKnowTheirPlaces) {
  const auto worlds = thread_worlds(3);
  ASSERT_EQ(worlds.size(), 3u);
  for (int r = 0; r < 3; ++r) {
    const World& world = worlds[static_cast<std::size_t>(r)];
    EXPECT_EQ(world.rank(), r);
    EXPECT_EQ(world.local_rank(), r);
    EXPECT_EQ(world.size(), 3);
    EXPECT_EQ(world.local_size(), 3);
    EXPECT_EQ(world.communicator().backend(), "threads");
  }
  EXPECT_THROW(thread_worlds(0), ConfigError);
}

// As processes of such hosts are joined.
TEST(Threads, WorldsOfPretendedHostsHaveTwoLevels) {
  const auto world = [](int size, int here) { return thread_worlds(size, {.ranks_per_host = here}).front(); };
  EXPECT_EQ(world(4, 2).communicator().backend(), "hosts");
  EXPECT_EQ(world(4, 2).communicator().topology(), (Topology{2, true}));
  EXPECT_EQ(world(6, 3).communicator().topology(), (Topology{3, true}));
  EXPECT_EQ(world(4, 4).communicator().topology(), (Topology{4, false}));
  EXPECT_EQ(world(4, 1).communicator().topology(), (Topology{1, false}));
  EXPECT_EQ(world(4, 0).communicator().topology(), Topology{});
  EXPECT_THROW(world(4, 3), ConfigError);
}

TEST(Self, IsAGroupOfOne) {
  const Communicator self;
  EXPECT_EQ(self.size(), 1);
  EXPECT_EQ(self.backend(), "self");
  Array half = random_array(Dtype::bf16, 9, 1), sum(Dtype::f32, 9), copy(Dtype::bf16, 9);
  self.reduce_scatter(half.view(), sum.view()).wait();
  EXPECT_EQ(sum, reference_sum({half}));
  self.all_gather(half.view(), copy.view()).wait();
  EXPECT_EQ(copy, half);
  self.all_to_all(half.view(), half.view()).wait();
  self.all_reduce(half.view()).wait();
  self.broadcast(half.view(), 0).wait();
  EXPECT_EQ(copy, half);
  EXPECT_EQ(self.split(3, 4).size(), 1);
  EXPECT_EQ(completed(self.all_gather(half.view(), copy.view())), Moved{}) << "there is nobody to get it from";
}

TEST(Self, RefusesMemoryOfADevice) {
  float value = 0;
  EXPECT_THROW(Communicator().all_gather({&value, 1, Dtype::f32, 0}, {&value + 1, 1, Dtype::f32, 0}), ConfigError);
}

}  // namespace zero::test::threads_test
