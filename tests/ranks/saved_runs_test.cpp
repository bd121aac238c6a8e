// The folder of a run: what stays of it, and what is loaded, where the run goes back, or checkpoints lie elsewhere; how
// much of a checkpoint a load reads.
#include <torch/torch.h>

#include <filesystem>

#include "counting_env.h"
#include "folder.h"
#include "optimizers.h"
#include "persist/checkpoint_list.h"
#include "persist/checkpoint_reader.h"
#include "states.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero::test::saved_runs_test {

namespace fs = std::filesystem;
using Steps = std::vector<std::int64_t>;

// So many steps, then a save, until a number of steps.
void train_until(Lm& model, Engine& engine, int last, int every, const std::string& folder, const SaveOptions& how) {
  while (engine.steps() < last) {
    train_step(model, engine);
    if (engine.steps() % every != 0) continue;
    const std::string told = engine.save(folder, how);
    const std::string saved = how.background ? engine.finish_save() : told;
    EXPECT_EQ(saved, told);
    EXPECT_TRUE(fs::exists(saved + "/manifest.json")) << saved << " was removed by the save that wrote it";
  }
}

TEST(SavedRuns, KeepWhatIsWrittenAfterTheyWentBack) {
  for (const bool background : {false, true}) {
    const Folder folder;
    const SaveOptions how{.keep_last = 3, .background = background};
    const Job job{.plan = Plan::zero2(), .ranks = 2};
    on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
      train_until(model, engine, 6, 2, folder.path(), how);
      EXPECT_EQ(engine.load(folder.path(), {.step = 2}).step, 2);
      train_until(model, engine, 3, 1, folder.path(), how);
    });
    EXPECT_EQ(checkpoint_steps(folder.path()), (Steps{2, 3, 6})) << "the branch that was left goes first";
    on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
      EXPECT_EQ(engine.load(folder.path()).step, 3);
      SaveOptions replacing = how;
      replacing.replace = true;
      train_until(model, engine, 6, 1, folder.path(), replacing);
    });
    EXPECT_EQ(checkpoint_steps(folder.path()), (Steps{4, 5, 6}));
    EXPECT_EQ(find_checkpoint(folder.path()).step, 6);
  }
}

// And do not mistake another run's for their own.
TEST(SavedRuns, KeepWhatIsWrittenToAUsedFolder) {
  const Folder folder;
  const Job job{.plan = Plan::zero3(), .ranks = 2};
  on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
    train_until(model, engine, 4, 2, folder.path(), {});
    EXPECT_EQ(engine.load(folder.path(), {.weights_only = true}).step, 0);
    train_until(model, engine, 1, 1, folder.path(), {.keep_last = 2});
  });
  EXPECT_EQ(checkpoint_steps(folder.path()), (Steps{1, 4}));
  on_ranks<Lm>(job, {}, [&](Lm&, Engine& engine, int) { EXPECT_EQ(engine.load(folder.path()).step, 1); });
}

TEST(SavedRuns, AreLoadedThroughLinks) {
  const Folder folder, archive;
  on_ranks<Lm>({.plan = Plan::zero1(), .ranks = 2}, {}, [&](Lm& model, Engine& engine, int rank) {
    train_until(model, engine, 4, 2, folder.path(), {});
    engine.save(folder.path() + "/one");  // after which no rank looks for the fourth step any more
    if (rank == 0) {
      fs::copy(folder.path() + "/step-000004", archive.path() + "/four");
      fs::remove_all(folder.path() + "/step-000004");
      fs::create_directory_symlink(archive.path() + "/four", folder.path() + "/step-000004");
    }
    engine.save(folder.path() + "/other");  // after which all ranks see it
    EXPECT_EQ(engine.load(folder.path()).step, 4);
    engine.save(folder.path(), {.replace = true});
  });
  EXPECT_TRUE(fs::exists(archive.path() + "/four/manifest.json")) << "what the link led to";
  EXPECT_FALSE(fs::is_symlink(folder.path() + "/step-000004"));
}

// By an engine that has all of it in its place, and by one that has stepped never.
TEST(SavedRuns, AreReadOnceByALoad) {
  for (const Plan& plan : {Plan::ddp(), Plan::zero3().bf16(), Plan::zero2().precision(Precision::bf16_kahan)})
    for (const int ranks : {1, 2}) {
      const Folder folder;
      CountingEnv env(posix_env());
      replace_checkpoint_env(&env);
      const Job job{.plan = plan, .ranks = ranks};
      on_ranks<StatesModelImpl>(job, {}, [&](StatesModelImpl& model, Engine& engine, int) {
        for (int step = 0; step < 2; ++step) train_step(model, engine);
        engine.save(folder.path());
        engine.load(folder.path());
      });
      const std::int64_t again = env.bytes.exchange(0);
      on_ranks<StatesModelImpl>(job, {}, [&](StatesModelImpl&, Engine& engine, int) { engine.load(folder.path()); });
      const std::int64_t first = env.bytes;
      replace_checkpoint_env(nullptr);
      const std::int64_t all = bytes_of(Checkpoint::open(posix_env(), folder.path() + "/step-000002").manifest());
      EXPECT_EQ(again, ranks == 1 ? all : again) << plan.label();
      EXPECT_EQ(first, again) << plan.label();
    }
}

}  // namespace zero::test::saved_runs_test
