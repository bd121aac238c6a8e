#include "planner/memory_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

namespace room_test {

namespace fs = std::filesystem;
using planner::Room;
using planner::room_of_host;

constexpr std::int64_t kMib = 1 << 20;

// A root folder with files of the kernel's.
class RoomOfHost : public testing::Test {
 protected:
  RoomOfHost() { write("proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\nSwapFree: 1024 kB\n"); }
  ~RoomOfHost() override { fs::remove_all(root_); }

  void write(const fs::path& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  static std::string number(std::int64_t value) { return std::to_string(value) + "\n"; }
  Room room() const { return room_of_host(root_).value(); }

  const fs::path root_ = [] {
    std::string path = testing::TempDir() + "zero_room.XXXXXX";
    ::mkdtemp(path.data());
    return fs::path(path);
  }();
};

TEST_F(RoomOfHost, IsUnknownWhereTheKernelDoesNotTell) {
  write("proc/meminfo", "MemTotal: 4194304 kB\n");
  EXPECT_FALSE(room_of_host(root_));
}

TEST_F(RoomOfHost, IsWhatIsAvailableAndSwap) {
  EXPECT_EQ(room().bytes, 2049 * kMib);
  EXPECT_EQ(room().limited_by, "the host's memory");
}

TEST_F(RoomOfHost, IsWhatTheNearestGroupLeavesWithoutItsCache) {
  write("proc/self/cgroup", "0::/run/job\n");
  write("sys/fs/cgroup/run/memory.max", number(1000 * kMib));
  write("sys/fs/cgroup/run/memory.current", number(900 * kMib));
  write("sys/fs/cgroup/run/memory.stat", "anon 1\ninactive_file " + number(300 * kMib) + "active_file " + number(0));
  write("sys/fs/cgroup/run/job/memory.max", "max\n");
  write("sys/fs/cgroup/run/job/memory.current", number(1));
  EXPECT_EQ(room().bytes, 401 * kMib);
  EXPECT_EQ(room().limited_by, "the limit of control group /run");
}

// In a container its own group is the mount's root, whatever the host calls it.
TEST_F(RoomOfHost, FindsTheGroupOfAContainer) {
  write("proc/self/cgroup", "0::/host/hidden\n");
  write("sys/fs/cgroup/memory.max", number(100 * kMib));
  write("sys/fs/cgroup/memory.current", number(60 * kMib));
  EXPECT_EQ(room().bytes, 41 * kMib);
  EXPECT_EQ(room().limited_by, "the limit of control group /");
}

TEST_F(RoomOfHost, KnowsGroupsOfVersion1) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n");
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", number(50 * kMib));
  write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", number(70 * kMib));
  EXPECT_EQ(room().bytes, 1 * kMib);
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(room().limited_by, "the host's memory");
}

TEST_F(RoomOfHost, IsAlsoWhatProcessesAreLimitedTo) {
  using planner::room_of_processes;
  write("proc/self/status", "Name: zero\nVmSize: 307200 kB\nVmData: 102400 kB\n");
  EXPECT_FALSE(room_of_processes(2, {}, root_));
  const auto data = room_of_processes(2, {.data = 150 * kMib, .addresses = 1000 * kMib}, root_);
  ASSERT_TRUE(data);
  EXPECT_EQ(data->bytes, 2 * 50 * kMib);
  EXPECT_EQ(data->limited_by, "the limit of a process's data (ulimit -d)");
  const auto addresses = room_of_processes(1, {.data = 150 * kMib, .addresses = 200 * kMib}, root_);
  ASSERT_TRUE(addresses);
  EXPECT_EQ(addresses->bytes, 0) << "more is taken already";
  EXPECT_EQ(addresses->limited_by, "the limit of a process's addresses (ulimit -v)");
  EXPECT_EQ(room_of_processes(1, {.data = 150 * kMib, .addresses = {}, .stack = kMib}, root_)->bytes, 40 * kMib)
      << "ten threads";
  EXPECT_EQ(room_of_processes(2, {.data = INT64_MAX, .addresses = {}}, root_)->bytes, INT64_MAX);
}

TEST(LimitsOfAProcess, AreThoseOfTheKernel) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{kMib << 12, kMib << 12};
    ::setrlimit(RLIMIT_DATA, &limit);
    const planner::ProcessLimits limits = planner::limits_of_process();
    ::_exit(limits.data == kMib << 12 && limits.stack > 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace room_test
