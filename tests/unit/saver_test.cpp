// Saves behind their callers, who go on meanwhile.
#include "persist/saver.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoints.h"
#include "passing_env.h"

namespace zero::test::saver_test {

// Enough for every rank's file to go past the page cache.
MadeState large_state(std::int64_t steps) {
  MadeState made = small_state(steps);
  made.add({{"wide", StateKind::main_weight}, Dtype::f32, {4096, 2003}});
  return made;
}

// Three ranks that save `steps` states one after the other, and do other things beside.
std::vector<std::string> save_behind(Env& env, const std::string& folder, std::int64_t steps, const MadeState& made) {
  const Spread spread{3, 1};
  const std::vector<World> others = thread_worlds(spread.ranks());
  return on_ranks(spread.ranks(), [&](const Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<char> memory;  // ends after the saver
    Saver saver(env, others[static_cast<std::size_t>(rank)].communicator());
    for (std::int64_t step = 1; step <= steps; ++step) {
      MadeState now = made;
      now.scalars.steps = step;
      Snapshot snapshot(state_of(now, spread, rank), rank);
      memory.resize(static_cast<std::size_t>(snapshot.bytes()));
      snapshot.take(memory.data());
      saver.begin({folder, std::move(snapshot), {.mesh = MeshShape(spread.ranks())}, {.last = 2}});
      for (int i = 0; i < 50; ++i) communicator.barrier().wait();
      saver.finish();
    }
  });
}

TEST(Saver, WritesBehindItsCaller) {
  const std::string folder = std::filesystem::temp_directory_path() / ("zero_saver." + std::to_string(::getpid()));
  const MadeState made = large_state(0);
  EXPECT_EQ(save_behind(posix_env(), folder, 3, made), std::vector<std::string>(3));
  EXPECT_FALSE(std::filesystem::exists(folder + "/step-000001"));
  for (const char* step : {"/step-000002", "/step-000003"}) {
    EXPECT_TRUE(verify(posix_env(), folder + step).empty()) << step;
  }
  std::filesystem::remove_all(folder);
}

TEST(Saver, TellsOfItsFailureWhenItIsFinished) {
  struct Full final : PassingEnv {
    using PassingEnv::PassingEnv;
    std::unique_ptr<WritableFile> create(const std::string& path, Caching) override {
      throw CheckpointError("no room for " + path);
    }
  } env(posix_env());
  const std::string folder = std::filesystem::temp_directory_path() / ("zero_saver." + std::to_string(::getpid()));
  for (const std::string& fault : save_behind(env, folder, 1, small_state()))
    EXPECT_NE(fault.find("step-000001 was not saved"), std::string::npos) << fault;
  EXPECT_FALSE(std::filesystem::exists(folder + "/step-000001"));
  std::filesystem::remove_all(folder);
}

}  // namespace zero::test::saver_test
