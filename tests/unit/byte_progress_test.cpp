#include "cli/report/progress.h"

#include <gtest/gtest.h>

#include <sstream>

namespace cli::byte_progress_test {

constexpr std::int64_t kMiB = 1 << 20;

TEST(ByteProgress, ShowsNothingWithinASecond) {
  std::ostringstream out;
  double now = 5;
  ByteProgress progress("verify", 10 * kMiB, {&out, 80, false}, [&] { return now; });
  progress.begin("step-000100");
  progress.add(kMiB);
  now = 5.99;
  progress.add(8 * kMiB);
  progress.clear();
  EXPECT_EQ(out.str(), "");
}

TEST(ByteProgress, ShowsItselfTenTimesASecondFromThenOn) {
  std::ostringstream out;
  double now = 5;
  {
    ByteProgress progress("verify", 8 * kMiB - 7, {&out, 80, false}, [&] { return now; });
    progress.begin("step-000100");
    progress.add(3 * kMiB);
    now = 6;
    progress.add(kMiB);
    now = 6.05;
    progress.add(kMiB);
    progress.begin("step-000200");
    now = 6.2;
    progress.add(kMiB);
  }
  EXPECT_EQ(out.str(),
            "\r\033[Kverify [============            ] 4/8  MiB  step-000100"
            "\r\033[Kverify [==================      ] 6/8  MiB  step-000200\r\033[K");
}

TEST(ByteProgress, IsNothingWhereThereIsNoTerminal) {
  std::ostringstream out;
  double now = 5;
  ByteProgress progress("verify", kMiB, {&out, 0, false}, [&] { return now; });
  now = 9;
  progress.add(kMiB);
  EXPECT_EQ(out.str(), "");
}

}  // namespace cli::byte_progress_test
