// zero checkpoint: what it prints and writes, its exit codes, and what it says of damage and of bad paths.
#include <gtest/gtest.h>

#include <fstream>

#include "checkpoints.h"
#include "documented.h"
#include "persist/folders.h"
#include "procs/zero_program.h"

namespace checkpoint_test {

using documented::Json;
using documented::Schema;
using procs::contains;
using procs::Folder;
using procs::joined;
using procs::Result;
using procs::run;
using procs::Words;
using zero::Dtype;
using zero::StateKind;
using zero::test::MadeState;

namespace fs = std::filesystem;

// Without what aligns columns.
std::string squeezed(const std::string& text) {
  std::string result;
  for (const char c : text)
    if (c != ' ' || !result.ends_with(' ')) result += c;
  return result;
}

Result checkpoint(const Words& words) {
  return run(procs::zero(joined({"checkpoint"}, words)));
}

// A model of four layers.
MadeState state(std::int64_t step) {
  MadeState made = zero::test::small_state(step);
  for (int layer = 0; layer < 4; ++layer) {
    const std::string weight = "layers." + std::to_string(layer) + ".wq.weight";
    made.add({{weight, StateKind::main_weight}, Dtype::f32, {8, 8}});
    made.add({{weight, StateKind::moment, "0"}, Dtype::bf16, {8, 8}});
  }
  return made;
}

class CheckpointCommand : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<float> order(6, 1.0f);
    save(state(100), {2, 2}, "zero3 bf16", R"({"epoch": 3})", {{"order", Dtype::f32, {2, 3}, order.data()}});
    save(state(200), {3, 1}, "zero1 bf16", {}, {});
  }
  void save(const MadeState& made, const zero::test::Spread& spread, const std::string& plan, const std::string& user,
            const std::vector<zero::UserTensor>& tensors) {
    ASSERT_EQ(zero::test::save(zero::posix_env(), run_, made, spread, {.plan = plan, .user = user}, tensors),
              std::vector<std::string>(static_cast<std::size_t>(spread.ranks())));
  }

  // Flips a bit of a file's byte, counted from its end.
  static void damage(const std::string& path, std::int64_t from_end) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-from_end, std::ios::end);
    const int byte = file.get();
    file.seekp(-from_end, std::ios::end);
    file.put(static_cast<char>(byte ^ 4));
  }

  Json json_of(const Words& words, int code = 0) {
    const Result result = checkpoint(joined(words, {"--json", "-"}));
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.err, "");
    return Json::parse(result.out);
  }
  static void expect_documented(const std::string& name, const std::vector<Json>& documents) {
    Schema schema(ZERO_SOURCE_DIR "/docs/json.md", name);
    for (const Json& each : documents) schema.check(each);
    EXPECT_EQ(schema.missing(), "");
  }

  const Folder folder_;
  const std::string run_ = folder_.path("run");
  const std::string first_ = run_ + "/step-000100", second_ = run_ + "/step-000200";
};

TEST_F(CheckpointCommand, ListsAFolder) {
  fs::create_directory(run_ + "/step-000300.partial");
  fs::remove(second_ + "/rank-00001.safetensors");
  const Result result = checkpoint({"list", run_});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* part :
       {"step-000100 complete, left zero3 bf16 100 4 ", "step-000200 damaged zero1 bf16 200 3 ",
        "step-000300.partial partial - 300 - 0\n", "step-000200: rank-00001.safetensors is not there\n",
        "2 checkpoints, 1 of them damaged; 1 leftover of what was cut off, or is under way",
        "The run went back before those that are left: the newest does not go on from them.\n"})
    EXPECT_TRUE(contains(squeezed(result.out), part)) << part << " in\n" << result.out;
  const Json json = json_of({"list", run_});
  expect_documented("zero.checkpoint-list/1", {json});
  const Json& all = json.at("checkpoints");
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all.at(0).at("plan"), "zero3 bf16");
  EXPECT_EQ(all.at(0).at("ranks"), 4);
  EXPECT_EQ(all.at(1).at("state"), "damaged");
  EXPECT_EQ(all.at(2).at("state"), "partial");
  EXPECT_TRUE(all.at(2).at("plan").is_null());
}

TEST_F(CheckpointCommand, ListsAFolderInWhichNothingWasSavedYet) {
  fs::create_directory(folder_.path("new"));
  std::ofstream(folder_.path("new/.lock")).close();
  const Result result = checkpoint({"list", folder_.path("new")});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "0 checkpoints.\n");
}

TEST_F(CheckpointCommand, ShowsWhatIsInACheckpoint) {
  const Result result = checkpoint({"show", first_});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with(first_ + ": step 100, zero3 bf16, 4 ranks (2 replica x 2 shard); written by "))
      << result.out;
  for (const char* part :
       {"seed 18364758544493064720\n", "The program's own: {\"epoch\": 3}\n", "main weight 5 298 1,192\n",
        "of the program 1 6 24\n", "manifest.json ", " 0 to 3, each", "order of the program fp32 [2, 3]"})
    EXPECT_TRUE(contains(squeezed(result.out), part)) << part << " in\n" << result.out;
  EXPECT_FALSE(contains(squeezed(result.out), "\n 3.wq.weight")) << result.out;
  const Result all = checkpoint({"show", first_, "--all"});
  EXPECT_TRUE(contains(squeezed(all.out), "\n 3.wq.weight")) << all.out;
}

TEST_F(CheckpointCommand, ShowsTheNewestOfAFolder) {
  EXPECT_TRUE(checkpoint({"show", run_}).out.starts_with(second_ + ": step 200, zero1 bf16, 3 ranks"));
}

TEST_F(CheckpointCommand, WritesWhatIsInACheckpointAsDocumented) {
  MadeState made = state(300);
  made.scalars.loss_scaler = {1024, 2, 1};
  made.scalars.float8["a"] = {{0.5}, {2, 4}};
  made.scalars.optimizers["a"] = "adamw";
  const std::vector<float> order(6, 1.0f);
  save(made, {1, 1}, "ddp fp16", R"({"epoch": 3})", {{"order", Dtype::f32, {2, 3}, order.data()}});
  const Json json = json_of({"show", run_}), old = json_of({"show", second_});
  expect_documented("zero.checkpoint-show/1", {json, old});
  EXPECT_EQ(json.at("precision"), "fp16");
  EXPECT_EQ(json.at("tensors").size(), 15u);
  EXPECT_EQ(json.at("user"), R"({"epoch": 3})");
  EXPECT_EQ(json.at("scalars").at("seed"), 0xfedcba9876543210u);
  EXPECT_TRUE(old.at("user").is_null());
  EXPECT_EQ(old.at("files").size(), 4u);
}

TEST_F(CheckpointCommand, VerifiesOneOrAll) {
  const Result one = checkpoint({"verify", first_}), all = checkpoint({"verify", run_});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_TRUE(one.out.starts_with(first_ + ": whole, ")) << one.out;
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(std::ranges::count(all.out, '\n'), 2) << all.out;
  EXPECT_EQ(all.err, "");
}

TEST_F(CheckpointCommand, NamesFileTensorAndBytesOfAFault) {
  const std::string file = second_ + "/rank-00002.safetensors";
  damage(file, 1);
  fs::remove(second_ + "/rank-00000.safetensors");
  const Result result = checkpoint({"verify", run_});
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(contains(result.out, first_ + ": whole, ")) << result.out;
  EXPECT_TRUE(contains(result.out, second_ + "/rank-00000.safetensors, bytes 0 to ")) << result.out;
  EXPECT_TRUE(contains(result.out, "1 of 2 checkpoints is damaged.\n")) << result.out;
  const Json json = json_of({"verify", run_}, 1);
  expect_documented("zero.checkpoint-verify/1", {json});
  EXPECT_EQ(json.at("whole"), false);
  EXPECT_EQ(json.at("checkpoints").at(0).at("whole"), true);
  const Json& faults = json.at("checkpoints").at(1).at("faults");
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_TRUE(faults.at(0).at("tensor").is_null());
  const Json& fault = faults.at(1);
  EXPECT_EQ(fault.at("file"), "rank-00002.safetensors");
  EXPECT_EQ(fault.at("end"), fs::file_size(file));
  const std::string line = file + ", bytes " + std::to_string(fault.at("begin").get<std::int64_t>()) + " to " +
                           std::to_string(fs::file_size(file)) + ", of " + fault.at("tensor").get<std::string>() +
                           ": their checksum is not that of what was written\n";
  EXPECT_TRUE(contains(result.out, line)) << line << "in\n" << result.out;
}

TEST_F(CheckpointCommand, FindsAManifestThatIsDamagedOrGone) {
  damage(first_ + "/manifest.json", 100);
  fs::remove(second_ + "/manifest.json");
  const Result result = checkpoint({"verify", run_});
  EXPECT_EQ(result.code, 1);
  for (const std::string& folder : {first_, second_})
    EXPECT_TRUE(contains(result.out, folder + "/manifest.json: ")) << result.out;
  const Result shown = checkpoint({"show", first_});
  EXPECT_EQ(shown.code, 2);
  EXPECT_TRUE(contains(shown.err, first_ + "/manifest.json: ")) << shown.err;
}

TEST_F(CheckpointCommand, FindsNoDifferenceBetweenPlans) {
  const std::string other = folder_.path("other");
  const auto faults = zero::test::save(zero::posix_env(), other, state(200), {1, 2}, {.plan = "ddp bf16"});
  ASSERT_EQ(faults, std::vector<std::string>(2));
  const Result result = checkpoint({"diff", second_, other});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_TRUE(contains(result.out, "They are equal: 15 tensors of 724 elements compared.\n")) << result.out;
}

TEST_F(CheckpointCommand, TellsInWhatCheckpointsDiffer) {
  MadeState made = state(100);
  made.tensors[5].values[8] = static_cast<char>(made.tensors[5].values[8] ^ 1);
  made.add({{"new", StateKind::parameter}, Dtype::f32, {2}});
  const std::string other = folder_.path("other");
  ASSERT_EQ(zero::test::save(zero::posix_env(), other, made, {1, 1}), std::vector<std::string>(1));
  const Result result = checkpoint({"diff", first_, other});
  EXPECT_EQ(result.code, 1) << result.err;
  for (const char* part :
       {"only in A: order of the program, fp32 [2, 3]\n", "only in B: new parameter, fp32 [2]\n",
        "mean buffer 1 5 0 1 [1]\n", "user {\"epoch\": 3} -\n", "1 with other values; 2 in one only"})
    EXPECT_TRUE(contains(squeezed(result.out), part)) << part << " in\n" << result.out;
  const Json json = json_of({"diff", first_, other}, 1);
  expect_documented("zero.checkpoint-diff/1", {json});
  EXPECT_EQ(json.at("equal"), false);
  EXPECT_EQ(json.at("values").at(0).at("largest"), 1.0);
  EXPECT_EQ(json.at("values").at(0).at("at"), Json::array({1}));
  EXPECT_TRUE(json.at("forms").at(1).at("a").is_null());
}

// 1 says that they differ.
TEST_F(CheckpointCommand, EndsWithTwoWhereItCannotCompare) {
  damage(second_ + "/rank-00000.safetensors", 1);
  const Result result = checkpoint({"diff", first_, second_});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, second_ + " is damaged: rank-00000.safetensors, bytes ")) << result.err;
  EXPECT_EQ(result.out, "");
}

TEST_F(CheckpointCommand, PrunesWhatItSaysItWould) {
  save(state(300), {1, 1}, "ddp fp32", {}, {});
  const Result would = checkpoint({"prune", run_, "--keep", "1", "--keep-every", "200", "--dry-run"});
  EXPECT_EQ(would.code, 0) << would.err;
  EXPECT_TRUE(would.out.starts_with("would remove step-000100\n1 checkpoint, ")) << would.out;
  EXPECT_TRUE(fs::exists(first_));
  const Result did = checkpoint({"prune", run_, "--keep", "1", "--keep-every", "200"});
  EXPECT_EQ(did.code, 0) << did.err;
  EXPECT_TRUE(did.out.starts_with("removed step-000100\n1 checkpoint, ")) << did.out;
  EXPECT_FALSE(fs::exists(first_));
  EXPECT_TRUE(fs::exists(second_));
  const Json json = json_of({"prune", run_, "--keep", "1"});
  expect_documented("zero.checkpoint-prune/1", {json});
  EXPECT_EQ(json.at("removed").at(0).at("step"), 200);
  EXPECT_EQ(json.at("kept").at(0).at("name"), "step-000300");
  EXPECT_FALSE(fs::exists(second_));
}

TEST_F(CheckpointCommand, PrunesNothingWhileASaveIsUnderWay) {
  const zero::Env::Lock save = zero::lock_checkpoints(zero::posix_env(), run_);
  const Result result = checkpoint({"prune", run_, "--keep", "1"});
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(contains(result.err, "a save into it is under way")) << result.err;
  EXPECT_EQ(checkpoint({"prune", run_, "--keep", "1", "--dry-run"}).code, 0);
}

TEST_F(CheckpointCommand, RefusesWhatIsNoCheckpoint) {
  fs::create_directory(folder_.path("empty"));
  fs::create_directory(run_ + "/step-000300.partial");
  const std::string neither = "' is neither a checkpoint nor a folder of checkpoints";
  struct Bad {
    Words words;
    std::string says;
  };
  for (const Bad& bad :
       {Bad{{"list", folder_.path("none")}, "there is no '" + folder_.path("none")},
        Bad{{"show", folder_.path("empty")}, folder_.path("empty") + neither},
        Bad{{"verify", folder_.path("text")}, "Not a directory"},
        Bad{{"list", first_}, "is a checkpoint, not a folder of them"},
        Bad{{"prune", first_, "--keep", "1"}, "is a checkpoint, not a folder of them"},
        Bad{{"diff", first_, run_ + "/step-000300.partial"}, "a save that was cut off"},
        Bad{{"diff", first_}, "B is required; see zero checkpoint diff --help"},
        Bad{{"show"}, "CKPT is required; see zero checkpoint show --help"}, Bad{{"prune", run_}, "--keep is required"},
        Bad{{"list", run_, first_}, "unexpected argument '" + first_},
        Bad{{"list", run_, "--json", run_ + "/x"}, "--json"}, Bad{{"shwo", run_}, "did you mean 'show'?"}}) {
    const Result result = checkpoint(bad.words);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_TRUE(result.err.starts_with("zero: ") && contains(result.err, bad.says)) << bad.says << "\n" << result.err;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

}  // namespace checkpoint_test
