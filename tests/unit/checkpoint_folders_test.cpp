// Folders of checkpoints: which there are, which stay, whether ranks share them; and the system's files.
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoints.h"
#include "fault_env.h"
#include "persist/folders.h"
#include "persist/retention.h"
#include "zero/error.h"

namespace zero::test::checkpoint_folders_test {

using Steps = std::vector<std::int64_t>;

Steps steps_in(Env& env) {
  Steps steps;
  for (const CheckpointPlace& each : list_checkpoints(env, "run")) steps.push_back(each.step);
  return steps;
}

TEST(CheckpointNames, AreThoseOfSteps) {
  EXPECT_EQ(checkpoint_name(123), "step-000123");
  EXPECT_EQ(checkpoint_name(12345678), "step-12345678");
  for (const std::int64_t step : {std::int64_t{0}, std::int64_t{999999}, INT64_MAX})
    EXPECT_EQ(step_named(checkpoint_name(step)), step);
  for (const char* other : {"step-", "step-12", "step-0000123", "step-00012x", "step--00012", "Step-000123",
                            "step-000123.partial", "step-99999999999999999999", "step- 00012", ""})
    EXPECT_EQ(step_named(other), std::nullopt) << other;
}

class Retention : public testing::Test {
 protected:
  void SetUp() override {
    for (std::int64_t step = 1; step <= 6; ++step)
      ASSERT_EQ(save(env_, "run", small_state(step), {1, 1}), std::vector<std::string>(1));
  }
  void damage(std::int64_t step) {
    env_.bytes_of("run/" + checkpoint_name(step) + "/rank-00000.safetensors").back() ^= 1;
  }

  FaultEnv env_;
};

TEST_F(Retention, KeepsTheLastAndEverySoMany) {
  EXPECT_EQ(prune(env_, "run", {}), Steps());
  EXPECT_EQ(prune(env_, "run", {.last = 2, .every = 3}), (Steps{1, 2, 4}));
  EXPECT_EQ(steps_in(env_), (Steps{3, 5, 6}));
  EXPECT_EQ(prune(env_, "run", {.last = 9}), Steps());
  EXPECT_EQ(prune(env_, "run", {.last = 1}, 6), (Steps{3, 5}));
  EXPECT_EQ(env_.list("run").size(), 2u) << "the checkpoint and the lock";
  EXPECT_EQ(prune(env_, "elsewhere", {.last = 1}), Steps());
  EXPECT_THROW(prune(env_, "run", {.last = -1}), ConfigError);
}

TEST_F(Retention, KeepsTheLastThatVerifies) {
  damage(6), damage(5), damage(4);
  EXPECT_EQ(prune(env_, "run", {.last = 2}), (Steps{1, 2, 4}));
  EXPECT_EQ(steps_in(env_), (Steps{3, 5, 6}));
  damage(3);
  EXPECT_EQ(prune(env_, "run", {.last = 1}), Steps());
  EXPECT_EQ(steps_in(env_), (Steps{3, 5, 6}));
}

TEST_F(Retention, FindsTheNewestThatVerifies) {
  EXPECT_EQ(newest_checkpoint(env_, "run")->step, 6);
  damage(6), damage(5);
  std::vector<std::string> damaged;
  EXPECT_EQ(newest_checkpoint(env_, "run", &damaged)->step, 4);
  ASSERT_EQ(damaged.size(), 2u);
  EXPECT_TRUE(damaged[0].starts_with("run/step-000006: rank-00000.safetensors, bytes ")) << damaged[0];
  EXPECT_EQ(newest_checkpoint(env_, "elsewhere"), std::nullopt);
}

// A removal that ends anywhere leaves a checkpoint whole, or not listed.
TEST_F(Retention, SurvivesCrashes) {
  bool struck = true;
  for (std::int64_t at = 0; struck; ++at) {
    FaultEnv env;
    for (std::int64_t step = 1; step <= 3; ++step)
      ASSERT_EQ(save(env, "run", small_state(step), {1, 1}), std::vector<std::string>(1));
    env.crash_after(at);
    const auto faults = on_ranks(1, [&](const Communicator&) { prune(env, "run", {.last = 1}, 3); });
    struck = env.struck();
    EXPECT_EQ(faults[0].empty(), !struck);
    env.restart(Survives::all);
    clean_partials(env, "run");
    for (const CheckpointPlace& each : list_checkpoints(env, "run")) EXPECT_TRUE(verify(env, each.folder).empty());
    EXPECT_EQ(steps_in(env).back(), 3);
  }
}

bool has_only_a_lock(Env& env, const std::string& folder) {
  return std::ranges::all_of(env.list(folder), [](const FolderEntry& each) { return each.name == kLockFile; });
}

TEST(SharedFolders, AreFoundToBe) {
  FaultEnv env;
  EXPECT_EQ(on_ranks(3, [&](const Communicator& each) { require_shared_folder(env, each, "some/run"); }),
            std::vector<std::string>(3));
  EXPECT_TRUE(has_only_a_lock(env, "some/run"));
}

TEST(SharedFolders, AreFoundNotToBe) {
  FaultEnv env, other;
  other.create_folder("run");
  const auto faults = on_ranks(4, [&](const Communicator& communicator) {
    require_shared_folder(communicator.rank() % 2 == 1 ? other : env, communicator, "run");
  });
  const std::string text =
      "checkpoints cannot be saved to 'run': the ranks do not share it: rank 1: does not find there what rank 0 has "
      "written; rank 3: does not find there what rank 0 has written (give a folder that all hosts share, and that can "
      "be written)";
  EXPECT_EQ(faults, std::vector<std::string>(4, text));
  EXPECT_TRUE(has_only_a_lock(env, "run"));
}

// Wherever rank 0 was killed while the ranks looked.
TEST(SharedFolders, KeepNothingOfARunThatWasKilled) {
  bool left = false;
  for (std::int64_t at = 0; at < 4; ++at) {
    FaultEnv env;
    env.create_folder("run");
    env.sync_folder("run");
    env.crash_after(at);
    (void)on_ranks(2, [&](const Communicator& each) { require_shared_folder(env, each, "run"); });
    env.restart(Survives::all);
    left |= !has_only_a_lock(env, "run");
    clean_partials(env, "run");
    EXPECT_TRUE(has_only_a_lock(env, "run"));
  }
  EXPECT_TRUE(left);
}

TEST(SharedFolders, CanBeWritten) {
  for (std::int64_t at = 0; at < 4; ++at) {
    FaultEnv env;
    env.create_folder("run");
    env.fail_after(at);
    const auto faults = on_ranks(2, [&](const Communicator& each) { require_shared_folder(env, each, "run"); });
    EXPECT_NE(faults[1].find("rank 0: "), std::string::npos) << faults[1];
    EXPECT_EQ(faults[0], faults[1]);
  }
}

class PosixFiles : public testing::Test {
 protected:
  PosixFiles() { ::mkdtemp(root_.data()); }
  ~PosixFiles() override { std::filesystem::remove_all(root_); }
  std::string error_of(const std::function<void()>& work) {
    try {
      work();
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "none";
  }

  std::string root_ = (std::filesystem::temp_directory_path() / "zero_files.XXXXXX").string();
  Env& env_ = posix_env();
};

TEST_F(PosixFiles, AreWrittenListedAndRemoved) {
  create_lasting_folder(env_, root_ + "/a/b/c/");
  write_text(env_, root_ + "/a/b/text", "words");
  write_text(env_, root_ + "/a/b/empty", "");
  EXPECT_EQ(read_text(env_, root_ + "/a/b/text", 5), "words");
  EXPECT_EQ(read_text(env_, root_ + "/a/b/empty", 0), "");
  std::filesystem::create_directory_symlink(root_, root_ + "/a/b/link");
  std::string names;
  for (const FolderEntry& entry : env_.list(root_ + "/a/b")) names += entry.name + (entry.folder ? "/ " : " ");
  EXPECT_EQ(names, "c/ empty link/ text ");
  EXPECT_TRUE(env_.is_link(root_ + "/a/b/link"));
  EXPECT_FALSE(env_.is_link(root_ + "/a/b/c"));
  EXPECT_GT(env_.free_bytes(root_), 0);
  EXPECT_TRUE(env_.exists(root_ + "/a/b/link"));
  EXPECT_FALSE(env_.exists(root_ + "/a/b/text/x"));
  env_.rename(root_ + "/a/b", root_ + "/a/d");
  remove_folder(env_, root_ + "/a");
  EXPECT_TRUE(env_.list(root_).empty()) << "what a link leads to stays";
}

TEST_F(PosixFiles, TellPathAndCauseOfFailures) {
  const std::string none = root_ + "/none", text = root_ + "/text";
  write_text(env_, text, "words");
  EXPECT_EQ(error_of([&] { env_.open(none); }), "open of '" + none + "' failed: No such file or directory");
  EXPECT_EQ(error_of([&] { env_.create(text); }), "open of '" + text + "' failed: File exists");
  EXPECT_EQ(error_of([&] { env_.list(none); }), "opendir of '" + none + "' failed: No such file or directory");
  EXPECT_EQ(error_of([&] { env_.remove(none); }), "remove of '" + none + "' failed: No such file or directory");
  EXPECT_EQ(error_of([&] { env_.rename(none, text); }), "rename of '" + none + "' failed: No such file or directory");
  EXPECT_EQ(error_of([&] { env_.create_folder(text + "/x"); }), "mkdir of '" + text + "/x' failed: Not a directory");
  EXPECT_EQ(error_of([&] { env_.open(root_); }), "open of '" + root_ + "' failed: it is no file");
  EXPECT_EQ(error_of([&] { env_.free_bytes(none); }), "statvfs of '" + none + "' failed: No such file or directory");
  EXPECT_EQ(error_of([&] { env_.sync_folder(none); }), "open of '" + none + "' failed: No such file or directory");
  EXPECT_EQ(error_of([&] { env_.lock(none + "/x"); }), "open of '" + none + "/x' failed: No such file or directory");
  char bytes[9];
  EXPECT_EQ(error_of([&] { env_.open(text)->read(2, bytes, 4); }), "read of '" + text + "' failed: it ends at byte 5");
  EXPECT_NE(error_of([&] { read_text(env_, text, 4); }), "none");
  EXPECT_EQ(error_of([&] { const auto full = posix_env().open("/dev/full"); }),
            "open of '/dev/full' failed: it is no file");
}

TEST_F(PosixFiles, AreLockedOnce) {
  Env::Lock lock = env_.lock(root_ + "/.lock");
  ASSERT_TRUE(lock);
  EXPECT_FALSE(env_.lock(root_ + "/.lock"));
  lock.reset();
  EXPECT_TRUE(env_.lock(root_ + "/.lock"));
}

}  // namespace zero::test::checkpoint_folders_test
