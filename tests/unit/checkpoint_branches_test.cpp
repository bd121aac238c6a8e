// Runs that go back to an older checkpoint of their folder, and folders that were used before: which checkpoint is the
// newest, and which ones are the first to go.
#include <gtest/gtest.h>

#include "checkpoints.h"
#include "fault_env.h"
#include "passing_env.h"
#include "persist/checkpoint_list.h"
#include "persist/folders.h"
#include "persist/lineage.h"
#include "persist/retention.h"
#include "zero/error.h"

namespace zero::test::checkpoint_branches_test {

using Steps = std::vector<std::int64_t>;

class Branches : public testing::Test {
 protected:
  // By a run that stands where `run_` says.
  void save_steps(const Steps& steps, bool replace = false) {
    for (const std::int64_t step : steps)
      ASSERT_EQ(save(env_, "run", small_state(step), {1, 1}, {.replace = replace, .origin = run_}),
                std::vector<std::string>(1));
  }
  void go_back_to(std::int64_t step) { *run_ = Origin{step, read_lineage(env_, place(step))}; }
  void another_run() { run_->reset(); }
  Steps listed() {
    Steps steps;
    for (const CheckpointPlace& each : list_checkpoints(env_, "run")) steps.push_back(each.step);
    return steps;
  }
  Steps left() {
    Steps steps;
    for (const ListedFolder& each : list_folders(env_, "run"))
      if (each.left) steps.push_back(each.step);
    return steps;
  }
  static std::string place(std::int64_t step) { return "run/" + checkpoint_name(step); }
  void damage(std::int64_t step) { env_.bytes_of(place(step) + "/rank-00000.safetensors").back() ^= 1; }

  FaultEnv env_;
  std::shared_ptr<std::optional<Origin>> run_ = std::make_shared<std::optional<Origin>>();
};

TEST_F(Branches, AreOneWhereARunGoesOn) {
  save_steps({1, 2, 3});
  go_back_to(3);
  save_steps({4});
  EXPECT_EQ(listed(), (Steps{1, 2, 3, 4}));
  EXPECT_EQ(left(), Steps());
  EXPECT_EQ(read_lineage(env_, place(4)), (Lineage{4, {}}));
}

TEST_F(Branches, ThatWereLeftAreTheOldest) {
  save_steps({1, 2, 3, 4});
  go_back_to(2);
  save_steps({5}, false);
  EXPECT_EQ(listed(), (Steps{3, 4, 1, 2, 5}));
  EXPECT_EQ(left(), (Steps{3, 4}));
  EXPECT_EQ(checkpoint_steps("nowhere"), Steps());
  EXPECT_EQ(checkpoints_at(env_, "run").back(), place(5));
  EXPECT_EQ(prune(env_, "run", {.last = 3}, 5), (Steps{3, 4}));
  EXPECT_EQ(prune(env_, "run", {.last = 2}, 5), (Steps{1}));
}

TEST_F(Branches, HaveANewestOfALowerStepThanOthers) {
  save_steps({10, 20, 30});
  go_back_to(10);
  save_steps({15});
  EXPECT_EQ(newest_checkpoint(env_, "run")->step, 15);
  EXPECT_EQ(prune(env_, "run", {.last = 1, .every = 30}, 15), (Steps{10, 20}));
  EXPECT_EQ(listed(), (Steps{30, 15}));
}

// What is read where the newest is damaged is what it goes on from, and not a branch that was left.
TEST_F(Branches, FallBackOnTheirOwn) {
  save_steps({10, 20, 30});
  go_back_to(10);
  save_steps({15});
  damage(15);
  EXPECT_EQ(newest_checkpoint(env_, "run")->step, 10);
  EXPECT_EQ(prune(env_, "run", {.last = 1}), (Steps{20, 30})) << "the newest that verifies stays";
  EXPECT_EQ(listed(), (Steps{10, 15}));
}

TEST_F(Branches, AreToldApartBehindCheckpointsThatWereRemoved) {
  save_steps({1, 2, 3, 4});
  go_back_to(3);
  save_steps({5, 6});
  env_.remove(place(3) + "/manifest.json");
  remove_folder(env_, place(3));
  remove_folder(env_, place(5));
  go_back_to(6);
  save_steps({7});
  EXPECT_EQ(left(), (Steps{4}));
  go_back_to(2);
  save_steps({8});
  EXPECT_EQ(left(), (Steps{4, 6, 7}));
  EXPECT_EQ(listed(), (Steps{4, 6, 7, 1, 2, 8}));
}

TEST_F(Branches, OfAnotherRunAreLeft) {
  save_steps({100, 200});
  another_run();
  save_steps({7});
  EXPECT_EQ(listed(), (Steps{100, 200, 7}));
  EXPECT_EQ(prune(env_, "run", {.last = 1}, 7), (Steps{100, 200}));
  *run_ = Origin{7, Lineage{9, {}}};  // of another folder
  save_steps({8});
  EXPECT_EQ(left(), (Steps{7}));
}

TEST_F(Branches, ReplaceWhatTheyLeft) {
  save_steps({10, 20, 30});
  go_back_to(10);
  save_steps({20, 25}, /*replace=*/true);
  EXPECT_EQ(listed(), (Steps{30, 10, 20, 25}));
  EXPECT_EQ(left(), (Steps{30}));
}

// As an older version of the library left them.
TEST_F(Branches, GoOnFromCheckpointsThatDoNotSay) {
  save_steps({1, 3, 2});
  for (const std::int64_t step : {1, 2, 3}) env_.remove(place(step) + "/lineage.json");
  EXPECT_EQ(listed(), (Steps{1, 2, 3}));
  EXPECT_EQ(newest_checkpoint(env_, "run")->step, 3);
  go_back_to(2);
  save_steps({4});
  EXPECT_EQ(listed(), (Steps{1, 2, 3, 4}));
  another_run();
  save_steps({0});
  EXPECT_EQ(left(), (Steps{1, 2, 3, 4}));
}

TEST_F(Branches, OfWhichAFileIsDamagedAreTheOldest) {
  save_steps({1, 2, 3});
  env_.bytes_of(place(2) + "/lineage.json")[40] ^= 1;
  EXPECT_EQ(listed(), (Steps{2, 1, 3}));
  EXPECT_TRUE(verify(env_, place(2)).empty()) << "its state is whole";
}

// Who cannot tell which are the newest removes none.
TEST_F(Branches, ThatCannotBeReadAreNotRemoved) {
  save_steps({1, 2, 3});
  struct Unreadable final : PassingEnv {
    using PassingEnv::PassingEnv;
    std::unique_ptr<ReadableFile> open(const std::string& path) override {
      if (path.ends_with("step-000001/lineage.json")) throw CheckpointError("open of " + path + " failed");
      return PassingEnv::open(path);
    }
  } env(env_);
  EXPECT_THROW(prune(env, "run", {.last = 1}, 3), CheckpointError);
  EXPECT_EQ(newest_checkpoint(env, "run")->step, 3);
  EXPECT_EQ(listed(), (Steps{1, 2, 3}));
}

TEST(Lineages, ComeBackFromTheirText) {
  const Lineage lineage{12, {{0, 3}, {7, 7}}};
  EXPECT_EQ(lineage_of(to_text(lineage), "it"), lineage);
  EXPECT_TRUE(lineage.has_left(0) && lineage.has_left(7) && !lineage.has_left(4) && !lineage.has_left(12));
  const std::string text = to_text(lineage);
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_THROW(lineage_of(text.substr(0, length), "it"), CheckpointError);
}

}  // namespace zero::test::checkpoint_branches_test
