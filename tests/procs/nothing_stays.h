// A fixture for what starts processes of its own: none of them is left behind.
#pragma once

#include <gtest/gtest.h>

#include "procs/zero_program.h"

namespace procs {

// What is started under `variables()` ends with what started it.
class NothingStays : public testing::Test {
 protected:
  static constexpr std::chrono::hours kWatchdog{1};

  ~NothingStays() override {
    EXPECT_EQ(orphanage_.survivors(), 0);
    for (const pid_t process : left()) {
      ADD_FAILURE() << "left: " << read_all("/proc/" + std::to_string(process) + "/cmdline");
      ::kill(process, SIGKILL);
    }
  }

  Variables variables() const { return {{kMark, mark_}}; }
  std::vector<pid_t> left() const { return processes_with(kMark, mark_); }

  // Waits until that rank runs.
  static pid_t rank_of(pid_t launcher, int number) {
    for (;;)
      if (const pid_t rank = procs::rank_of(launcher, number)) return rank;
  }
  static pid_t rank_of(const Program& program, int number) { return rank_of(program.pid(), number); }
  static pid_t keeper_of(const Program& program) { return parent_of(rank_of(program, 0)); }
  static void expect_ends(const Program& program) { ASSERT_TRUE(program.ends_within(kWatchdog)); }

 private:
  static constexpr const char* kMark = "ZERO_TEST_LAUNCH";

  const Orphanage orphanage_;
  std::string mark_ = std::to_string(::getpid()) + testing::UnitTest::GetInstance()->current_test_info()->name();
};

}  // namespace procs
