// Groups that are joined for devices, too: by threads here, which take their memory for the devices'.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "comm/decorators.h"
#include "comm/threads.h"
#include "meetings.h"
#include "zero/error.h"

namespace zero::on_devices_test {

class OnDevices : public testing::Test {
 protected:
  // Calls body(group, rank) on a thread for each rank.
  template <class Body>
  void on_ranks(int ranks, const Body& body) {
    const auto host = thread_communicators(ranks, std::chrono::minutes(5));
    const DeviceReach reach{[](int device) { return static_cast<std::uint64_t>(device); },
                            [this](const std::string& name, int rank, int size, int, const HostMap&) {
                              return meetings_.join(name, rank, size);
                            }};
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] { body(reaching_devices(host[static_cast<std::size_t>(r)], reach), r); });
    for (std::thread& thread : threads) thread.join();
  }

  static double sum(CommunicatorImpl& group, double value) {
    const View one{&value, 1, Dtype::f64};
    group.run({Collective::all_reduce, one, one}).wait();
    return value;
  }

  test::Meetings meetings_;
};

TEST_F(OnDevices, JoinRanksThatHaveOneEach) {
  on_ranks(3, [](const auto& group, int rank) {
    const auto devices = group->on_device(rank);
    ASSERT_NE(devices, nullptr);
    EXPECT_EQ(devices->rank(), rank);
    EXPECT_EQ(sum(*devices, rank), 3);
    EXPECT_EQ(sum(*group, rank), 3);
  });
}

TEST_F(OnDevices, JoinNobodyWhereTwoRanksHaveTheSame) {
  on_ranks(3, [](const auto& group, int rank) { EXPECT_EQ(group->on_device(rank == 2 ? 0 : rank), nullptr); });
  EXPECT_EQ(meetings_.names(), 0U);
}

TEST_F(OnDevices, KeepGroupsApart) {
  on_ranks(4, [](const auto& group, int rank) {
    const auto half = group->split(rank / 2, rank), other = group->split(rank % 2, rank);
    const auto first = half->on_device(rank), second = other->on_device(rank), third = half->on_device(rank);
    EXPECT_EQ(sum(*first, rank), rank / 2 == 0 ? 1 : 5);
    EXPECT_EQ(sum(*second, rank), rank % 2 == 0 ? 2 : 4);
    EXPECT_EQ(sum(*third, 1), 2);
  });
  EXPECT_EQ(meetings_.names(), 6U);
}

TEST_F(OnDevices, AreCheckedByTheHost) {
  on_ranks(2, [](const auto& group, int rank) {
    const auto devices = checked(group)->on_device(rank);
    EXPECT_EQ(sum(*devices, 1), 2);
    std::vector<double> values(2);
    const View differing{values.data(), rank + 1, Dtype::f64};
    EXPECT_THROW(devices->run({Collective::all_reduce, differing, differing}).wait(), CommError);
  });
}

}  // namespace zero::on_devices_test
