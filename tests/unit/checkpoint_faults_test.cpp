// Saves that fail or crash anywhere, and files that are damaged: nothing is taken for what it is not.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "checkpoints.h"
#include "fault_env.h"
#include "passing_env.h"
#include "persist/folders.h"
#include "persist/retention.h"
#include "zero/error.h"

namespace zero::test::checkpoint_faults_test {

const Spread kTwo{2, 1};
const std::vector<std::string> kNoFaults(2);

std::vector<std::int64_t> steps_in(Env& env, const std::string& folder) {
  std::vector<std::int64_t> steps;
  for (const CheckpointPlace& each : list_checkpoints(env, folder)) steps.push_back(each.step);
  return steps;
}

bool has_leftovers(FaultEnv& env, const std::string& folder) {
  for (const FolderEntry& entry : env.list(folder))
    if (entry.folder && !step_named(entry.name)) return true;
  return false;
}

// A second step is saved, or the first again, until no fault strikes.
void crash_everywhere(bool replace, Survives survives, unsigned seeds) {
  const std::int64_t step = replace ? 1 : 2;
  bool struck = true;
  for (std::int64_t at = 0; struck; ++at)
    for (unsigned seed = 0; seed < seeds && struck; ++seed) {
      FaultEnv env;
      ASSERT_EQ(save(env, "run", small_state(1), kTwo), kNoFaults);
      MadeState second = small_state(step);
      second.scalars.seed = 5;
      env.crash_after(at);
      const auto faults = save(env, "run", second, kTwo, {.replace = replace});
      struck = env.struck();
      const std::string where = "crash at " + std::to_string(at) + ", " + env.struck_operation();
      env.restart(survives, seed + static_cast<unsigned>(at) * 17);
      clean_partials(env, "run");
      EXPECT_FALSE(has_leftovers(env, "run")) << where;
      const std::vector<std::int64_t> steps = steps_in(env, "run");
      ASSERT_FALSE(steps.empty()) << where;
      EXPECT_EQ(steps.front(), 1) << where;
      for (const CheckpointPlace& each : list_checkpoints(env, "run"))
        EXPECT_TRUE(verify(env, each.folder).empty()) << where << ": " << each.folder;
      if (faults == kNoFaults) {
        EXPECT_EQ(steps.back(), step) << where << ": what was published is gone";
        EXPECT_EQ(Checkpoint::open(env, "run/" + checkpoint_name(step)).manifest().scalars.seed, 5u) << where;
      }
      ASSERT_EQ(save(env, "run", second, kTwo, {.replace = true}), kNoFaults) << where;
      EXPECT_EQ(newest_checkpoint(env, "run")->step, step) << where;
    }
}

TEST(CheckpointCrashes, LeaveWhatWasPublished) {
  crash_everywhere(false, Survives::nothing, 1);
  crash_everywhere(false, Survives::all, 1);
  crash_everywhere(false, Survives::some, 8);
}

TEST(CheckpointCrashes, LeaveTheOneThatIsReplaced) {
  crash_everywhere(true, Survives::nothing, 1);
  crash_everywhere(true, Survives::all, 1);
  crash_everywhere(true, Survives::some, 8);
}

void fail_everywhere(bool replace) {
  const std::int64_t step = replace ? 1 : 2;
  bool struck = true;
  std::int64_t failed = 0;
  for (std::int64_t at = 0; struck; ++at) {
    FaultEnv env;
    ASSERT_EQ(save(env, "run", small_state(1), kTwo), kNoFaults);
    MadeState second = small_state(step);
    second.scalars.seed = 5;
    env.fail_after(at);
    const auto faults = save(env, "run", second, kTwo, {.replace = replace});
    struck = env.struck();
    env.disarm();
    const std::string where = "failure of " + env.struck_operation();
    env.disarm();
    EXPECT_EQ(faults[0], faults[1]) << where;
    EXPECT_TRUE(faults[0].empty() || faults[0].find("injected") != std::string::npos) << faults[0];
    failed += !faults[0].empty();
    const bool published = faults == kNoFaults;
    EXPECT_EQ(steps_in(env, "run"),
              published && !replace ? (std::vector<std::int64_t>{1, 2}) : (std::vector<std::int64_t>{1}))
        << where;
    const std::uint64_t seed =
        Checkpoint::open(env, "run/" + checkpoint_name(step == 1 || !published ? 1 : 2)).manifest().scalars.seed;
    EXPECT_EQ(seed == 5, published) << where;
    EXPECT_TRUE(verify(env, "run/step-000001").empty()) << where;
    ASSERT_EQ(save(env, "run", second, kTwo, {.replace = true}), kNoFaults) << where;
    EXPECT_FALSE(has_leftovers(env, "run")) << where;
  }
  EXPECT_GT(failed, 20);
}

TEST(CheckpointFailures, ArePublishedNowhereAndToldToEveryRank) {
  fail_everywhere(false);
}

TEST(CheckpointFailures, GiveBackTheOneThatIsReplaced) {
  fail_everywhere(true);
}

TEST(CheckpointFailures, NameTheRank) {
  struct Failing final : WritableFile {
    void write(const void*, std::int64_t) override { throw CheckpointError("no space"); }
    void sync() override {}
    void close() override {}
  };
  const auto env = std::make_shared<FaultEnv>();
  struct OfRank1 final : PassingEnv {
    using PassingEnv::PassingEnv;
    std::unique_ptr<WritableFile> create(const std::string&, Caching) override { return std::make_unique<Failing>(); }
  } other(*env);
  const auto faults = on_ranks(2, [&](const Communicator& communicator) {
    Snapshot snapshot(state_of(small_state(), kTwo, communicator.rank()), communicator.rank());
    std::vector<double> memory(static_cast<std::size_t>(snapshot.bytes() / 8 + 1));
    snapshot.take(memory.data());
    Env& mine = communicator.rank() == 1 ? static_cast<Env&>(other) : *env;
    write_checkpoint(mine, communicator, "run", snapshot, {.mesh = MeshShape(2)});
  });
  EXPECT_EQ(faults[0], "step-000007 was not saved to 'run': rank 1: no space");
  EXPECT_EQ(faults[1], faults[0]);
  EXPECT_FALSE(has_leftovers(*env, "run"));
}

TEST(CheckpointFailures, NeedRoomBeforeAnythingIsWritten) {
  FaultEnv env;
  env.set_free_bytes(100);
  const auto faults = save(env, "run", small_state(), kTwo);
  EXPECT_NE(faults[1].find("room for 100 bytes"), std::string::npos) << faults[1];
  EXPECT_FALSE(has_leftovers(env, "run"));
}

TEST(CheckpointFailures, RefuseASecondSaveAndLeaveTheFirstItsFolder) {
  FaultEnv env;
  env.create_folder("run");
  env.create_folder("run/step-000003.partial");
  {
    const Env::Lock living = lock_checkpoints(env, "run");
    EXPECT_NE(save(env, "run", small_state(), kTwo)[0].find("is under way"), std::string::npos);
    EXPECT_TRUE(clean_partials(env, "run").empty());
    EXPECT_THROW(prune(env, "run", {.last = 1}), CheckpointError);
    EXPECT_TRUE(has_leftovers(env, "run"));
  }
  EXPECT_EQ(clean_partials(env, "run"), (std::vector<std::string>{"step-000003.partial"}));
  EXPECT_FALSE(has_leftovers(env, "run"));
  EXPECT_TRUE(clean_partials(env, "nowhere").empty());
}

std::string fault_of_reading(Env& env, const std::string& folder) {
  try {
    const Checkpoint checkpoint = Checkpoint::open(env, folder);
    CheckpointSource source(env, checkpoint);
    for (std::size_t t = 0; t < source.tensors().size(); ++t) {
      std::string values(static_cast<std::size_t>(source.tensors()[t].numel() * 8), '\0');
      source.read(t, 0, source.tensors()[t].numel(), values.data());
    }
    return {};
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

class DamagedCheckpoints : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(save(env_, "run", small_state(), {2, 2}), std::vector<std::string>(4));
    files_ = env_.files(folder_);
    std::erase(files_, folder_ + "/lineage.json");  // of which no state is read
    ASSERT_EQ(files_.size(), 5u);
    ASSERT_EQ(fault_of_reading(env_, folder_), "");
  }
  void expect_found(const std::string& file, const std::string& damage) {
    const std::vector<CheckpointFault> faults = verify(env_, folder_);
    ASSERT_FALSE(faults.empty()) << file << ": " << damage;
    EXPECT_EQ(folder_ + "/" + faults[0].file, file) << damage;
    const std::string text = fault_of_reading(env_, folder_);
    EXPECT_NE(text.find(file.substr(folder_.size() + 1)), std::string::npos) << file << ": " << damage << ": " << text;
    EXPECT_EQ(newest_checkpoint(env_, "run"), std::nullopt);
  }

  FaultEnv env_;
  const std::string folder_ = "run/step-000007";
  std::vector<std::string> files_;
};

TEST_F(DamagedCheckpoints, AreFoundByEveryBit) {
  std::minstd_rand random(1);
  for (int i = 0; i < 2500 && !HasFailure(); ++i) {
    const std::string& file = files_[random() % files_.size()];
    std::string& bytes = env_.bytes_of(file);
    const std::size_t bit = random() % (bytes.size() * 8);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    expect_found(file, "bit " + std::to_string(bit));
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
  }
  EXPECT_TRUE(verify(env_, folder_).empty());
}

TEST_F(DamagedCheckpoints, AreFoundByEveryLength) {
  for (const std::string& file : files_) {
    std::string& bytes = env_.bytes_of(file);
    const std::string whole = bytes;
    for (std::size_t length = 0; length < whole.size() && !HasFailure(); length += 1 + length / 50) {
      bytes = whole.substr(0, length);
      expect_found(file, "cut off at " + std::to_string(length));
    }
    bytes = whole + 'x';
    expect_found(file, "longer");
    bytes = whole;
  }
}

TEST_F(DamagedCheckpoints, AreFoundWithoutAFile) {
  for (const std::string& file : files_) {
    const std::string bytes = env_.bytes_of(file);
    env_.remove(file);
    expect_found(file, "missing");
    write_text(env_, file, bytes);
  }
}

TEST_F(DamagedCheckpoints, AreNamedByFileTensorAndBytes) {
  const Manifest manifest = Checkpoint::open(env_, folder_).manifest();
  const StoredTensor& stored = manifest.tensors[0];
  const StoredBytes& at = stored.pieces.back().at;
  const std::string name = manifest.files[at.file].name;
  char& byte = env_.bytes_of(folder_ + "/" + name)[static_cast<std::size_t>(at.offset + at.bytes - 1)];
  byte = static_cast<char>(byte ^ 4);
  const std::vector<CheckpointFault> faults = verify(env_, folder_);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(describe(faults[0]), name + ", bytes " + std::to_string(at.offset) + " to " +
                                     std::to_string(at.offset + at.bytes) +
                                     ", of a main weight: their checksum is not that of what was written");
  EXPECT_NE(fault_of_reading(env_, folder_).find(describe(faults[0])), std::string::npos);
}

}  // namespace zero::test::checkpoint_faults_test
