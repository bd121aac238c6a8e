// Checkpoints, and files of them, behind symbolic links; folders that others change meanwhile; locks.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "checkpoints.h"
#include "folder.h"
#include "persist/checkpoint_list.h"
#include "persist/folders.h"
#include "persist/gathered.h"
#include "persist/lock_file.h"
#include "persist/retention.h"
#include "zero/error.h"

namespace zero::test::checkpoint_links_test {

namespace fs = std::filesystem;
using Steps = std::vector<std::int64_t>;

class LinkedCheckpoints : public testing::Test {
 protected:
  void SetUp() override { save_steps({1, 2, 3}); }
  void save_steps(const Steps& steps, bool replace = false) {
    for (const std::int64_t step : steps)
      ASSERT_EQ(save(env_, run_, small_state(step), {1, 1}, {.replace = replace, .origin = origin_}),
                std::vector<std::string>(1));
  }
  std::string place(std::int64_t step) const { return run_ + "/" + checkpoint_name(step); }
  // Moves a checkpoint out of the folder, and leaves a link to it in its place.
  std::string move_away(std::int64_t step, const std::string& to, bool relative) {
    const std::string target = to + "/" + checkpoint_name(step) + "-elsewhere";
    fs::create_directories(to);
    fs::copy(place(step), target);
    fs::remove_all(place(step));
    fs::create_directory_symlink(relative ? fs::relative(target, run_) : fs::path(target), place(step));
    return target;
  }
  Steps listed() {
    Steps steps;
    for (const CheckpointPlace& each : list_checkpoints(env_, run_)) steps.push_back(each.step);
    return steps;
  }
  // Whether all that was written is there.
  bool whole(const std::string& folder) { return verify(env_, folder).empty(); }

  Folder folder_;
  Env& env_ = posix_env();
  std::string run_ = folder_.path() + "/run";
  std::string archive_ = folder_.path() + "/archive";
  std::shared_ptr<std::optional<Origin>> origin_ = std::make_shared<std::optional<Origin>>();
};

TEST_F(LinkedCheckpoints, AreSeen) {
  std::vector<std::string> targets{archive_};
  if (::access("/dev/shm", W_OK) == 0) targets.push_back("/dev/shm/" + fs::path(folder_.path()).filename().string());
  for (const std::string& target : targets)
    for (const bool relative : {false, true}) {
      const std::string there = move_away(3, target, relative);
      EXPECT_EQ(listed(), (Steps{1, 2, 3}));
      EXPECT_EQ(newest_checkpoint(env_, run_)->step, 3);
      EXPECT_EQ(list_folders(env_, run_).back().state, FolderState::complete);
      save_steps({3}, /*replace=*/true);
      EXPECT_FALSE(fs::is_symlink(place(3)));
      EXPECT_TRUE(whole(place(3)));
      EXPECT_TRUE(whole(there)) << "what the link led to stays";
      fs::remove_all(target);
    }
}

TEST_F(LinkedCheckpoints, ThatAreRemovedStayWhereTheyAre) {
  const std::string there = move_away(1, archive_, true);
  EXPECT_EQ(prune(env_, run_, {.last = 2}, 3), (Steps{1}));
  EXPECT_FALSE(env_.exists(place(1)));
  EXPECT_TRUE(whole(there));
}

TEST_F(LinkedCheckpoints, ThatLeadNowhereAreDamaged) {
  fs::remove_all(move_away(3, archive_, true));
  EXPECT_EQ(listed().size(), 3u);
  EXPECT_EQ(newest_checkpoint(env_, run_)->step, 2);
  EXPECT_EQ(list_folders(env_, run_).back().state, FolderState::damaged);
  save_steps({3}, /*replace=*/false);
  EXPECT_EQ(newest_checkpoint(env_, run_)->step, 3);
}

TEST_F(LinkedCheckpoints, ThatAreLeftoversGoAndWhatTheyLeadToStays) {
  fs::create_directories(archive_ + "/other");
  std::ofstream(archive_ + "/other/file") << "words";
  for (const char* suffix : {".partial", ".removed"}) {
    fs::create_directory_symlink(archive_ + "/other", place(7) + suffix);
    fs::create_directory_symlink("nowhere", place(8) + suffix);
  }
  EXPECT_EQ(clean_partials(env_, run_).size(), 4u);
  EXPECT_TRUE(fs::exists(archive_ + "/other/file"));
  fs::create_directory_symlink("nowhere", place(9) + ".partial");
  save_steps({9});
  EXPECT_TRUE(whole(place(9)));
}

TEST_F(LinkedCheckpoints, MayHaveFilesThatAreLinks) {
  fs::create_directories(archive_);
  for (const char* name : {"manifest.json", "rank-00000.safetensors", "lineage.json"}) {
    fs::rename(place(3) + "/" + name, archive_ + "/" + name);
    fs::create_symlink("../../archive/" + std::string(name), place(3) + "/" + name);
  }
  EXPECT_TRUE(whole(place(3)));
  EXPECT_EQ(newest_checkpoint(env_, run_)->step, 3);
  save_steps({4});
  EXPECT_EQ(prune(env_, run_, {.last = 1}, 4), (Steps{1, 2, 3}));
  EXPECT_TRUE(fs::exists(archive_ + "/rank-00000.safetensors"));
  fs::rename(place(4) + "/rank-00000.safetensors", archive_ + "/moved");
  fs::create_symlink("nowhere", place(4) + "/rank-00000.safetensors");
  EXPECT_FALSE(whole(place(4)));
}

TEST_F(LinkedCheckpoints, MayLieInAFolderThatIsALink) {
  const std::string link = folder_.path() + "/link";
  fs::create_directory_symlink("run", link);
  ASSERT_EQ(save(env_, link, small_state(4), {1, 1}), std::vector<std::string>(1));
  EXPECT_TRUE(whole(place(4)));
  fs::create_directories(archive_ + "/deep");
  fs::create_directory_symlink(archive_ + "/deep", folder_.path() + "/deep");
  create_lasting_folder(env_, folder_.path() + "/deep/../made/here");
  EXPECT_TRUE(fs::exists(archive_ + "/made/here")) << "'..' is of what the link leads to";
  EXPECT_FALSE(fs::exists(folder_.path() + "/made"));
  fs::create_directory_symlink("nowhere", folder_.path() + "/dangling");
  EXPECT_THROW(list_checkpoints(env_, folder_.path() + "/dangling"), CheckpointError);
}

// Beside a writer, whose entries come and go.
TEST(ChangingFolders, AreListed) {
  const Folder folder;
  std::atomic<bool> ends = false;
  std::thread writer([&] {
    for (int i = 0; !ends; ++i) {
      const std::string name = folder.path() + "/" + std::to_string(i % 50);
      if (fs::exists(name)) {
        fs::remove(name);
      } else {
        std::ofstream(name) << i;
      }
    }
  });
  std::string fault;
  for (int i = 0; i < 2000 && fault.empty(); ++i) fault = fault_of([&] { (void)posix_env().list(folder.path()); });
  ends = true;
  writer.join();
  EXPECT_EQ(fault, "");
}

// What a process of another user sees, which may write the folder and not that file.
int exit_code_of(const std::function<bool()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) ::_exit(3);
    try {
      ::_exit(work() ? 0 : 1);
    } catch (const std::exception&) {
      ::_exit(2);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(LockFiles, AreOpenToWhoMayNotWriteThem) {
  const Folder folder;
  fs::permissions(folder.path(), fs::perms::all);
  const std::string path = folder.path() + "/.lock";
  std::ofstream(path) << "";
  fs::permissions(path, fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read);
  EXPECT_EQ(exit_code_of([&] { return posix_env().lock(path) != nullptr; }), 0);
  const Env::Lock held = posix_env().lock(path);
  EXPECT_EQ(exit_code_of([&] { return posix_env().lock(path) == nullptr; }), 0) << "and held once";
}

TEST(LockFiles, MayBeWrittenByWhoMayWriteTheFolder) {
  const Folder folder;
  fs::permissions(folder.path(), fs::perms::all);
  const mode_t before = ::umask(077);
  (void)posix_env().lock(folder.path() + "/.lock");
  ::umask(before);
  struct stat info {};
  ASSERT_EQ(::stat((folder.path() + "/.lock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0666u);
}

int without_locks(int, int) {
  errno = ENOSYS;
  return -1;
}
int of_writers_alone(int descriptor, int operation) {
  if ((::fcntl(descriptor, F_GETFL) & O_ACCMODE) != O_RDONLY) return ::flock(descriptor, operation);
  errno = EBADF;
  return -1;
}
int interrupted_once(int descriptor, int operation) {
  static bool first = true;
  if (!std::exchange(first, false)) return ::flock(descriptor, operation);
  errno = EINTR;
  return -1;
}

TEST(LockFiles, SayWhereThereAreNone) {
  const Folder folder;
  const std::string path = folder.path() + "/.lock";
  const std::string said = fault_of([&] { (void)lock_file(path, without_locks); });
  for (const char* words : {"flock of '", "Function not implemented", "has no locks", "ZERO_CHECKPOINT_LOCK=0"})
    EXPECT_NE(said.find(words), std::string::npos) << said;
  ::setenv("ZERO_CHECKPOINT_LOCK", "0", 1);
  EXPECT_TRUE(lock_file(path, without_locks));
  EXPECT_TRUE(lock_file(path, ::flock)) << "and are used where there are";
  ::unsetenv("ZERO_CHECKPOINT_LOCK");
  EXPECT_TRUE(lock_file(path, of_writers_alone));
  EXPECT_TRUE(lock_file(path, interrupted_once));
}

}  // namespace zero::test::checkpoint_links_test
