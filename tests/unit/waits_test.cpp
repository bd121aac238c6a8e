// Who waits in vain for a rank that waits itself names whom that one waits for.
#include "comm/waits.h"

#include <array>
#include <future>
#include <latch>

#include "two_level_group.h"

namespace zero::test::waits_test {

const Hosts kHosts{2, 2};

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.what();
  }
  return "none";
}

void expect_told(const std::string& error, const std::string& what) {
  EXPECT_NE(error.find(what), error.npos) << error << "\nand not: " << what;
}

TEST(Waits, AreWhatRanksSaidLast) {
  const auto links = linked_threads(4);
  const auto says = [&](int rank) { return std::static_pointer_cast<Waits>(links->at(std::size_t(rank))); };
  const auto seen = [&](int rank) { return says(1)->of(rank); };
  const int wait = 0, other = 0;
  EXPECT_EQ(seen(0), "");
  says(0)->waits_for(2, &wait);
  EXPECT_EQ(seen(0), ", which waits for rank 2,");
  says(2)->waits_for(3, &wait);
  EXPECT_EQ(seen(2), ", which waits for rank 3,");
  EXPECT_EQ(seen(0), ", which waits for rank 3,");
  says(2)->goes_on(&other);
  EXPECT_EQ(seen(2), ", which waits for rank 3,");
  says(2)->goes_on(&wait);
  EXPECT_EQ(seen(2), "");
  EXPECT_EQ(seen(0), ", which waits for rank 2,");
}

TEST(Waits, AreNothingWhereRanksWaitForEachOtherOrForThisOne) {
  const auto links = linked_threads(3);
  const auto says = [&](int rank) { return std::static_pointer_cast<Waits>(links->at(std::size_t(rank))); };
  const int wait = 0;
  says(0)->waits_for(2, &wait);
  says(2)->waits_for(0, &wait);
  for (const int rank : {0, 2}) says(1)->of(rank);  // has heard of both
  for (const int rank : {0, 2}) EXPECT_EQ(says(1)->of(rank), "");
  says(2)->waits_for(1, &wait);
  EXPECT_EQ(says(1)->of(2), "");
  EXPECT_EQ(says(1)->of(0), ", which waits for rank 2,");
  EXPECT_EQ(says(1)->of(1), "");
}

// Of each wait that has failed the rank stays known; whoever comes late has its own limit.
class WaitingRanks : public testing::Test {
 protected:
  static constexpr Timeout kShort{20}, kJoining{2'000};

  Communicator across(int rank) const {
    const MakeRank make = network_of(links_, "across", rank % 2, 2, 2, {.timeout = kShort});
    return Communicator(make(rank / 2));
  }

  // Both ranks of a host.
  std::array<Communicator, 2> inside(int host) const {
    const MakeRank make = shared_group_of(links_, host * 2, kHosts, kJoining);
    auto second = std::async(std::launch::async, [&] { return Communicator(make(1)); });
    Communicator first(make(0));
    return {std::move(first), second.get()};
  }

  static std::string barrier(const Communicator& c) {
    return error_of([&] { c.barrier().wait(); });
  }

 private:
  std::shared_ptr<std::vector<std::shared_ptr<Links>>> links_ = linked_threads(kHosts.size());
};

TEST_F(WaitingRanks, AreKnownInsideTheirHost) {
  const auto host = inside(0);
  expect_told(barrier(across(0)), "rank 2 did not answer within 20 ms");
  expect_told(barrier(host[1]), "rank 1: barrier #1: rank 0, which waits for rank 2, did not arrive within 2000 ms");
}

TEST_F(WaitingRanks, AreKnownOnOtherHosts) {
  const auto host = inside(1);
  expect_told(barrier(host[1]), "rank 3: barrier #1: rank 2 did not arrive within 2000 ms");
  expect_told(barrier(across(1)), "rank 3, which waits for rank 2, did not answer within 20 ms");
}

// Of several that do not answer those are named that do not wait for others of them.
TEST_F(WaitingRanks, AreNotNamedBesideThoseTheyWaitFor) {
  const auto links = linked_threads(3);
  const auto of = [&](const char* name, int first, int size, int rank) {
    return Communicator(network_of(links, name, first, 1, size, {.timeout = kShort})(rank));
  };
  const Communicator pair = of("pair", 1, 2, 0), all = of("all", 0, 3, 0);
  expect_told(barrier(pair), "failed over tcp: rank 2 did not answer within 20 ms");
  links->at(0)->of(1);  // has heard of it
  expect_told(barrier(all), "failed over tcp: rank 2 did not answer within 20 ms");
}

// Nobody meets the time limit, and nobody ends a group before all have failed.
TEST(TwoHosts, NameARankThatLeavesOnAllOthersAtOnce) {
  using Call = void (*)(const Communicator&);
  const Call gather = [](const Communicator& c) {
    Array shard(Dtype::f32, 7), whole(Dtype::f32, 28);
    c.all_gather(shard.view(), whole.view()).wait();
  };
  const Call reduce = [](const Communicator& c) {
    Array shard(Dtype::f32, 7), whole(Dtype::f32, 28);
    c.reduce_scatter(whole.view(), shard.view()).wait();
  };
  for (const Call call : {gather, reduce})
    for (const int leaves : {1, 2}) {
      const MakeRank make = over_two_levels(kHosts, kNoHang);
      std::array<std::string, 4> errors;
      std::latch failed(3);
      std::vector<std::thread> threads;
      for (int rank = 0; rank < kHosts.size(); ++rank)
        threads.emplace_back([&, rank] {
          const Communicator c(make(rank));
          if (rank == leaves) return;
          errors[static_cast<std::size_t>(rank)] = error_of([&] { call(c); });
          failed.arrive_and_wait();
        });
      for (auto& thread : threads) thread.join();
      for (int rank = 0; rank < kHosts.size(); ++rank)
        if (rank != leaves)
          expect_told(errors[static_cast<std::size_t>(rank)], "rank " + std::to_string(leaves) + " left the group");
    }
}

}  // namespace zero::test::waits_test
