#include "zero/agreement.h"

#include <gtest/gtest.h>

#include <thread>

#include "comm/threads.h"

namespace zero::agreement_test {

// What each of as many threads is told, who has these lines.
std::vector<std::optional<Disagreement>> told(const std::vector<std::vector<std::string>>& lines) {
  const int size = static_cast<int>(lines.size());
  auto group = thread_communicators(size, std::chrono::hours(1));
  std::vector<std::optional<Disagreement>> results(lines.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < lines.size(); ++rank)
    threads.emplace_back(
        [&, rank] { results[rank] = disagreement(Communicator(group[rank]), lines[rank], "no more"); });
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(Disagreement, IsNoneWhereAllIsTheSame) {
  for (const auto& result : told({{"a", "b"}, {"a", "b"}, {"a", "b"}})) EXPECT_FALSE(result);
  EXPECT_FALSE(told({{"a"}}).front());
}

TEST(Disagreement, IsTheFirstOneAndTheSameForAll) {
  for (const auto& result : told({{"a", "b", "c"}, {"a", "B", "C"}, {"a", "b", "c"}})) {
    ASSERT_TRUE(result);
    EXPECT_EQ(result->line, 1u);
    EXPECT_EQ(result->values, "rank 0 has b; rank 1 has B; rank 2 has b");
  }
}

TEST(Disagreement, HasAWordForWhoeverHasFewerLines) {
  for (const auto& result : told({{"a"}, {"a", "b"}})) {
    ASSERT_TRUE(result);
    EXPECT_EQ(result->values, "rank 0 has no more; rank 1 has b");
  }
}

TEST(Disagreement, ShortensWhatIsLong) {
  for (const auto& result : told({{std::string(1000, 'a')}, {std::string(1000, 'b')}})) {
    ASSERT_TRUE(result);
    EXPECT_EQ(result->values, "rank 0 has " + std::string(239, 'a') + "; rank 1 has " + std::string(239, 'b'));
  }
}

}  // namespace zero::agreement_test
