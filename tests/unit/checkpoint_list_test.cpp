// What there is in a folder of checkpoints, which one a path means, and which would be removed.
#include "persist/checkpoint_list.h"

#include <gtest/gtest.h>

#include "checkpoints.h"
#include "fault_env.h"
#include "persist/folders.h"
#include "persist/retention.h"
#include "zero/error.h"

namespace zero::test::checkpoint_list_test {

class CheckpointLists : public testing::Test {
 protected:
  void SetUp() override {
    for (const std::int64_t step : {7, 20})
      ASSERT_EQ(save(env_, "run", small_state(step), {2, 1}, {.plan = "zero3 bf16"}), std::vector<std::string>(2));
  }
  ListedFolder only(std::int64_t step) {
    for (const ListedFolder& each : list_folders(env_, "run"))
      if (each.step == step) return each;
    return {};
  }
  std::string fault_of_path(const std::string& path) {
    try {
      checkpoints_at(env_, path);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "none";
  }
  std::int64_t bytes_in(const std::string& folder) {
    std::int64_t bytes = 0;
    for (const std::string& path : env_.files(folder)) bytes += static_cast<std::int64_t>(env_.bytes_of(path).size());
    return bytes;
  }

  FaultEnv env_;
};

TEST_F(CheckpointLists, AreByStepAndSayWhatTheManifestsSay) {
  ListedFolder first{
      .step = 7, .name = "step-000007", .bytes = bytes_in("run/step-000007"), .plan = "zero3 bf16", .ranks = 2};
  ListedFolder second = first;
  second.step = 20;
  second.name = "step-000020";
  first.left = true;  // by another run than the one that saved the second
  second.bytes = bytes_in("run/step-000020");
  EXPECT_EQ(list_folders(env_, "run"), (std::vector{first, second}));
  EXPECT_THROW(list_folders(env_, "elsewhere"), CheckpointError);
}

TEST_F(CheckpointLists, ShowLeftoversBehindTheCheckpointOfTheirStep) {
  for (const char* name : {"step-000007.replaced", "step-000030.partial", "step-000003.removed", "step-7", "other"})
    env_.create_folder(std::string("run/") + name);
  write_text(env_, "run/step-000030.partial/rank-00000.safetensors", "cut off");
  write_text(env_, "run/step-000040.partial", "a file");
  std::string text;
  for (const ListedFolder& each : list_folders(env_, "run"))
    text += each.name + " " + std::string(name(each.state)) + "; ";
  EXPECT_EQ(text,
            "step-000003.removed removed; step-000007 complete; step-000007.replaced replaced; step-000020 complete; "
            "step-000030.partial partial; ");
  EXPECT_EQ(only(30).bytes, 7);
  EXPECT_EQ(only(30).ranks, 0);
}

TEST_F(CheckpointLists, LookAtNoTensor) {
  env_.bytes_of("run/step-000007/rank-00000.safetensors").back() ^= 1;
  EXPECT_EQ(only(7).state, FolderState::complete);
}

TEST_F(CheckpointLists, SayWhatIsDamaged) {
  const std::string file = "run/step-000007/rank-00001.safetensors", manifest = "run/step-000020/manifest.json";
  const std::size_t written = env_.bytes_of(file).size();
  env_.bytes_of(file).pop_back();
  EXPECT_EQ(only(7).state, FolderState::damaged);
  EXPECT_EQ(only(7).plan, "zero3 bf16");
  EXPECT_EQ(only(7).fault, "rank-00001.safetensors has " + std::to_string(written - 1) + " bytes, " +
                               std::to_string(written) + " were written");
  env_.remove(file);
  EXPECT_EQ(only(7).fault, "rank-00001.safetensors is not there");
  env_.bytes_of(manifest)[100] ^= 1;
  EXPECT_EQ(only(20).state, FolderState::damaged);
  EXPECT_EQ(only(20).plan, "");
  EXPECT_NE(only(20).fault.find(manifest), std::string::npos) << only(20).fault;
  env_.remove(manifest);
  EXPECT_EQ(only(20).state, FolderState::damaged);
  EXPECT_EQ(only(20).ranks, 0);
}

TEST_F(CheckpointLists, TakeAPathForACheckpointOrForThoseInIt) {
  using Folders = std::vector<std::string>;
  EXPECT_EQ(kind_of(env_, "run/"), PathKind::folder);
  EXPECT_EQ(kind_of(env_, "run/step-000007/"), PathKind::checkpoint);
  EXPECT_EQ(checkpoints_at(env_, "run"), (Folders{"run/step-000007", "run/step-000020"}));
  EXPECT_EQ(checkpoints_at(env_, "run/step-000020"), (Folders{"run/step-000020"}));
  env_.rename("run/step-000007", "run/best");
  EXPECT_EQ(kind_of(env_, "run/best"), PathKind::checkpoint) << "by its manifest";
  env_.remove("run/step-000020/manifest.json");
  EXPECT_EQ(kind_of(env_, "run/step-000020"), PathKind::checkpoint) << "by its name";
}

TEST_F(CheckpointLists, RefusePathsToAnythingElse) {
  env_.create_folder("empty");
  env_.create_folder("new");
  write_text(env_, "new/.lock", "");
  env_.create_folder("run/step-000030.partial");
  EXPECT_EQ(fault_of_path("none"),
            "there is no 'none' (give a checkpoint's folder, or the one that checkpoints were saved to)");
  EXPECT_TRUE(fault_of_path("empty").starts_with("'empty' is neither a checkpoint nor a folder of checkpoints ("));
  EXPECT_TRUE(fault_of_path("run/step-000007/manifest.json").starts_with("list of 'run/step-000007/manifest.json'"));
  EXPECT_NE(fault_of_path("run/step-000030.partial").find("what a save that was cut off left"), std::string::npos);
  EXPECT_EQ(kind_of(env_, "new"), PathKind::folder);
  EXPECT_EQ(fault_of_path("new"), "there is no checkpoint in 'new'");
}

TEST_F(CheckpointLists, TellOfBytesWhileTheyAreVerified) {
  std::int64_t told = 0;
  const auto tell = [&](std::int64_t bytes) { told += bytes; };
  EXPECT_TRUE(verify(env_, "run/step-000007", tell).empty());
  EXPECT_EQ(told, bytes_of(Checkpoint::open(env_, "run/step-000007").manifest()));
}

TEST_F(CheckpointLists, SayWhatWouldBeRemovedAndRemoveNothing) {
  const std::vector<CheckpointPlace> first{{7, "run/step-000007", {1}, /*left=*/true}};
  std::int64_t told = 0;
  EXPECT_EQ(to_prune(env_, "run", {.last = 1}, {}, [&](std::int64_t bytes) { told += bytes; }), first);
  EXPECT_EQ(told, bytes_of(Checkpoint::open(env_, "run/step-000020").manifest()));
  EXPECT_TRUE(to_prune(env_, "run", {.last = 1, .every = 7}).empty());
  EXPECT_EQ(list_checkpoints(env_, "run").size(), 2u);
  env_.bytes_of("run/step-000020/rank-00000.safetensors").back() ^= 1;
  EXPECT_TRUE(to_prune(env_, "run", {.last = 1}).empty()) << "the newest that verifies stays";
  EXPECT_EQ(prune(env_, "run", {.last = 1}), std::vector<std::int64_t>());
}

TEST(FolderNames, AreOfCheckpointsAndOfLeftovers) {
  EXPECT_EQ(folder_named("step-000100"), (FolderName{100, {}}));
  EXPECT_EQ(folder_named("step-000100.partial"), (FolderName{100, kPartial}));
  EXPECT_EQ(folder_named("step-1234567.replaced"), (FolderName{1234567, kReplaced}));
  EXPECT_EQ(folder_named("step-000000.removed"), (FolderName{0, kRemoved}));
  for (const char* name : {"step-100", "step-000100.old", ".partial", "step-.partial", "step-000100.partial.removed"})
    EXPECT_EQ(folder_named(name), std::nullopt) << name;
}

}  // namespace zero::test::checkpoint_list_test
