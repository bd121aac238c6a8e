#include "comm/keyed_split.h"

#include <atomic>
#include <barrier>
#include <functional>
#include <future>
#include <latch>

#include "comm/threads.h"
#include "comm_fixture.h"
#include "shared_group.h"
#include "told.h"

namespace zero::test::keyed_split_test {

constexpr Timeout kShort = std::chrono::seconds(30);

MakeRank threads_group(int size, Timeout timeout) {
  auto ranks = std::make_shared<std::vector<std::shared_ptr<CommunicatorImpl>>>(thread_communicators(size, timeout));
  return [ranks](int rank) { return std::move((*ranks)[static_cast<std::size_t>(rank)]); };
}

constexpr Backend kThreads{"threads", threads_group, kShort, 0};

// What the ranks of a group of `key` say must be of that key.
void expect_group_of(const std::string& key, const Communicator& group, const Communicator& parent) {
  ASSERT_EQ(group.size(), parent.size());
  EXPECT_EQ(group.rank(), parent.rank());
  const auto own = static_cast<std::int64_t>(std::hash<std::string>()(key));
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather({&own, 1, Dtype::i64}, {all.data(), group.size(), Dtype::i64}).wait();
  for (const std::int64_t each : all) EXPECT_EQ(each, own) << key;
}

class KeyedSplits : public CommunicatorSuite {
 protected:
  // Each `body` in a thread of its own.
  static void together(const std::vector<std::function<void()>>& bodies) {
    std::vector<std::future<void>> threads;
    for (const auto& body : bodies) threads.push_back(std::async(std::launch::async, body));
    for (auto& thread : threads) thread.get();
  }
  static void ask(const Communicator& c, const std::string& key) { expect_group_of(key, split_by_key(c, {key}), c); }
  // Shows two threads to every rank, so that none is impatient.
  static void acquaint(const Communicator& c) {
    for (const std::string key : {"one", "other"}) together({[&] { ask(c, key); }});
  }
};

TEST_P(KeyedSplits, ComeFromSeveralThreadsInAnyOrder) {
  run([&](const Communicator& c) {
    acquaint(c);
    std::barrier both(2);
    const auto thread = [&](const std::string& name) {
      return [&, name] {
        for (int round = 0; round < 30; ++round) {
          both.arrive_and_wait();
          ask(c, name + std::to_string(round));
        }
      };
    };
    together({thread("a"), thread("b")});
    c.barrier().wait();
  });
}

// Rank 0 is in the round of one key, and the other ranks have asked for the other one, before they ask for both.
TEST_P(KeyedSplits, AreInRankZerosOrder) {
  if (size() == 1) return;
  for (const std::string first : {"a", "b"})
    run([&](const Communicator& inner) {
      std::atomic<int> rounds{0};
      std::latch begun(1);
      const Communicator c(std::make_shared<Told>(inner.impl(), [&](Collective call) {
        if (call == Collective::broadcast && ++rounds == 3) begun.count_down();
      }));
      acquaint(c);
      const std::string mine = c.rank() == 0 ? first : first == "a" ? "b" : "a";
      together({[&] { ask(c, mine); },
                [&] {
                  begun.wait();
                  ask(c, mine == "a" ? "b" : "a");
                }});
    });
}

TEST_P(KeyedSplits, OfEqualKeysBelongTogether) {
  run([&](const Communicator& c) {
    together({[&] { ask(c, "same"); }, [&] { ask(c, "same"); }, [&] { ask(c, "same"); }});
  });
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.what();
  }
  return "none";
}

TEST_P(KeyedSplits, OfKeysThatDifferFailOnEveryRankAndLeaveTheGroupAsItWas) {
  if (size() == 1) return;
  const auto texts = errors(
      [&](const Communicator& c) {
        const std::string self = "rank " + std::to_string(c.rank());
        const std::string error = error_of([&] { ask(c, c.rank() == 0 ? "a" : "b"); });
        EXPECT_NE(error.find(self + ": the ranks ask for different groups: rank 0 for 'a'; rank 1 for 'b'"), -1ul)
            << error;
        const auto explain = [&](const Communicator& group) {
          group.barrier().wait();
          throw CommError(self + " knows better");
        };
        EXPECT_EQ(error_of([&] { split_by_key(c, {self, explain}); }), self + " knows better");
        ask(c, "c");
      },
      {}, kShort);
  for (const std::string& text : texts) EXPECT_EQ(text, "");
}

// As long as the whole time limit: here until the ranks have asked each other more often than one thread may.
TEST_P(KeyedSplits, WaitForAThreadWhereSeveralWereSeen) {
  if (size() == 1) return;
  constexpr int kLooks = 40;
  const auto texts = errors(
      [&](const Communicator& inner) {
        std::latch begun(1), looked(kLooks);
        std::atomic<int> rounds{0}, looks{0};
        const Communicator c(std::make_shared<Told>(inner.impl(), [&](Collective call) {
          if (call == Collective::broadcast && ++rounds == 3) begun.count_down();
          if (call == Collective::all_gather && rounds == 3 && looks++ < kLooks) looked.count_down();
        }));
        acquaint(c);
        together({[&] { ask(c, c.rank() == 0 ? "a" : "b"); },
                  [&] {
                    begun.wait();
                    if (c.rank() == 1) looked.wait();
                    ask(c, c.rank() == 0 ? "b" : "a");
                  }});
      },
      {}, kShort);
  for (const std::string& text : texts) EXPECT_EQ(text, "");
}

TEST_P(KeyedSplits, RefuseALongKey) {
  run([&](const Communicator& c) {
    EXPECT_THROW(split_by_key(c, {std::string(KeyedSplit::kLongestKey + 1, 'x')}), ConfigError);
    ask(c, std::string(KeyedSplit::kLongestKey, 'x'));
  });
}

std::string title(const testing::TestParamInfo<CommunicatorSuite::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(OneHost, KeyedSplits,
                         testing::Combine(testing::Values(kThreads, kShared), testing::Values(1, 2, 3)), title);

}  // namespace zero::test::keyed_split_test
