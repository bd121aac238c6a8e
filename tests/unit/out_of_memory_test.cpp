// What the kernel tells of memory that ran out, and what a launcher makes of it. The folder `root` stands for /, so
// that no memory has to.
#include "cli/processes/killed_for_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/processes/spawn.h"

namespace cli::out_of_memory_test {

namespace fs = std::filesystem;

class OutOfMemory : public testing::Test {
 protected:
  OutOfMemory() { ::mkdtemp(root_.data()); }
  ~OutOfMemory() override { fs::remove_all(root_); }

  std::string path(const std::string& name) const { return root_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    std::ofstream(path(name)) << text;
  }
  std::optional<std::int64_t> kills() const { return memory_kills(root_); }

  // Of a single rank that does `script`, in which $F is the count's file.
  std::string launcher_says(const std::string& script) const {
    Job job;
    job.program = "sh";
    job.arguments = {"sh", "-c", "F=" + path("proc/vmstat") + "; " + script};
    job.system = root_;
    testing::internal::CaptureStderr();
    code_ = run_ranks(job).code;
    return testing::internal::GetCapturedStderr();
  }

  mutable int code_ = 0;
  std::string root_ = (fs::temp_directory_path() / "zero_root.XXXXXX").string();
};

TEST_F(OutOfMemory, IsCountedByTheControlGroup) {
  EXPECT_EQ(kills(), std::nullopt);
  write("proc/vmstat", "oom_kill_other 9\noom_kill 1\n");
  EXPECT_EQ(kills(), 1);
  write("proc/self/cgroup", "0::/job\n");
  EXPECT_EQ(kills(), 1);
  write("sys/fs/cgroup/memory.events", "oom 9\noom_kill 2\n");
  EXPECT_EQ(kills(), 2) << "a container sees its own group as the root";
  write("sys/fs/cgroup/job/memory.events", "low 0\noom 9\noom_kill 3\noom_group_kill 8\n");
  EXPECT_EQ(kills(), 3);
}

TEST_F(OutOfMemory, IsCountedByTheControlGroupOfVersion1) {
  write("proc/vmstat", "oom_kill 1\n");
  write("proc/self/cgroup", "7:cpu,memory:/a/b\n1:name=systemd:/\n0::/\n");
  EXPECT_EQ(kills(), 1);
  write("sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
  EXPECT_EQ(kills(), 4);
  write("sys/fs/cgroup/memory/a/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
  EXPECT_EQ(kills(), 5);
}

TEST_F(OutOfMemory, IsWhatCameAfterTheStart) {
  const MemoryWatch untold(root_);
  EXPECT_FALSE(untold.ran_out());
  write("proc/vmstat", "oom_kill 7\n");
  const MemoryWatch watch(root_);
  EXPECT_FALSE(watch.ran_out());
  write("proc/vmstat", "oom_kill 8\n");
  EXPECT_TRUE(watch.ran_out());
  EXPECT_FALSE(untold.ran_out());
}

TEST_F(OutOfMemory, IsSaidOfARankThatTheKernelKilled) {
  const std::string why =
      ": the system was out of memory (start fewer ranks, let each hold less, or give them more; zero plan says what a "
      "model needs)\n";
  const std::string killed = "zero: rank 0 was killed by signal 9 (Killed)";
  write("proc/vmstat", "oom_kill 0\n");
  EXPECT_EQ(launcher_says("kill -9 $$"), killed + "\n");
  EXPECT_EQ(launcher_says("echo oom_kill 1 >$F; kill -9 $$"), killed + why);
  EXPECT_EQ(code_, 137);
  EXPECT_EQ(launcher_says("echo oom_kill 2 >$F; exit 137"), "zero: rank 0 failed with exit code 137" + why);
  EXPECT_EQ(launcher_says("echo oom_kill 3 >$F; exit 1"), "zero: rank 0 failed with exit code 1\n");
}

}  // namespace cli::out_of_memory_test
