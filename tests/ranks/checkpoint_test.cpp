// Engines that save and load themselves: what goes on from a checkpoint is what went on without one, to the bit, under
// any plan and on any number of ranks that give the same bits.
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "covering.h"
#include "optimizers.h"
#include "states.h"
#include "zero/error.h"

namespace zero::test {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "zero-checkpoints-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// `steps` steps, after loading from `from` where that is a folder; saved then, to `to` where that is one.
Outcome stretch(const Job& job, const std::string& from, const std::string& to) {
  return train_by(job, Course<StatesModelImpl>{}, [&](StatesModelImpl& model, Engine& engine, Outcome& run, int) {
    if (!from.empty()) {
      const Restored restored = engine.load(from);
      EXPECT_EQ(restored.step, engine.steps());
      EXPECT_EQ(restored.user, R"({"epoch": 7})");
    }
    for (int step = 0; step < job.steps; ++step) run.record(train_step(model, engine));
    if (to.empty()) return;
    const std::string saved = engine.save(to, {.user = R"({"epoch": 7})"});
    EXPECT_TRUE(fs::exists(saved + "/manifest.json"));
    EXPECT_EQ(engine.ledger()[Owner::snapshot].bytes, 0);
    EXPECT_GT(engine.ledger()[Owner::snapshot].peak, 0);
  });
}

using Kept = std::tuple<std::size_t, Precision, Plan, int>;
class Checkpoints : public testing::TestWithParam<Kept> {};

TEST_P(Checkpoints, GoOnToTheBit) {
  const auto& [which, precision, plan, accumulate] = GetParam();
  const Folder folder;
  Job job{plan.precision(precision).accumulate(accumulate), 2, every_optimizer()[which], {.seed = 3}, 6};
  if (precision == Precision::fp16) job.options.loss_scale = LossScale{.initial = 0x1p10, .window = 2};
  const Outcome whole = stretch(job, "", "");
  job.steps = 3;
  stretch(job, "", folder.path());
  const Outcome second = stretch(job, folder.path(), "");
  const Outcome expected = [&] {
    Outcome last = whole;
    last.losses.erase(last.losses.begin(), last.losses.begin() + 3);
    last.norms.erase(last.norms.begin(), last.norms.begin() + 3);
    return last;
  }();
  EXPECT_EQ(difference(expected, second), "");
}

std::vector<Kept> kept() {
  std::vector<std::size_t> all(every_optimizer().size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  return covering(all, std::vector{Precision::fp32, Precision::bf16, Precision::fp16, Precision::bf16_kahan},
                  all_plans(), std::vector{1, 2});
}

std::string name_of(const testing::TestParamInfo<Kept>& tested) {
  const auto& [which, precision, plan, accumulate] = tested.param;
  return std::to_string(which) + in_title(std::string(name(every_optimizer()[which]))) +
         in_title(std::string(name(precision))) + in_title(plan.label()) + "Of" + std::to_string(accumulate);
}

INSTANTIATE_TEST_SUITE_P(All, Checkpoints, testing::ValuesIn(kept()), name_of);

// The state itself, through files, from plan to plan and from world to world.
TEST(CheckpointReshard, KeepsEveryBitFromAnyPlanAndWorldToAnyOther) {
  struct End {
    Plan plan;
    int ranks, shard;
  };
  const std::vector<End> ends{{Plan::ddp(), 1, 0},   {Plan::zero1(), 2, 0},        {Plan::zero2(), 3, 0},
                              {Plan::zero3(), 5, 0}, {Plan::hybrid(), 4, 2},       {Plan::zero3(), 4, 0},
                              {Plan::ddp(), 3, 0},   {Plan::hybrid_zero2(), 4, 2}, {Plan::zero1(), 1, 0}};
  States first;
  Folder before;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const Job job{.plan = ends[i].plan.bf16(), .ranks = ends[i].ranks, .options = {.seed = 3}, .shard = ends[i].shard};
    const auto here = std::make_shared<MemoryState>();
    const std::string from = before.path() + "/" + std::to_string(i - 1), to = before.path() + "/" + std::to_string(i);
    on_ranks<StatesModelImpl>(job, {}, [&](StatesModelImpl& model, Engine& engine, int) {
      if (i == 0) {
        for (int step = 0; step < 2; ++step) train_step(model, engine);
      } else {
        engine.load(from);
      }
      here->add(engine.state());
      engine.save(to);
    });
    EXPECT_EQ(here->faults(), "");
    if (i == 0) first = here;
    EXPECT_EQ(difference(*first, *here), "") << ends[i].plan.label() << " on " << ends[i].ranks;
  }
}

TEST(CheckpointFaults, PassOverADamagedOneAndNameIt) {
  const Folder folder;
  const Job job{Plan::zero3(), 2};
  on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int rank) {
    train_step(model, engine);
    engine.save(folder.path());
    train_step(model, engine);
    const std::string newest = engine.save(folder.path());
    if (rank == 0) {
      std::fstream file(newest + "/rank-00001.safetensors", std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-1, std::ios::end);
      file.put('\x55');
    }
  });
  on_ranks<Lm>(job, {}, [&](Lm&, Engine& engine, int rank) {
    EXPECT_EQ(engine.load(folder.path()).step, 1);
    const std::string text = thrown_by([&] { engine.load(folder.path(), 7); });
    EXPECT_TRUE(says(text, {"step-000007", "rank 0"})) << rank;
    EXPECT_EQ(engine.steps(), 1) << "a checkpoint that is not there ends no engine";
  });
}

TEST(CheckpointFaults, LeaveTheEngineToTrainOn) {
  run_ranks(2, [](const World& world) {
    Lm model;
    Engine engine(model, world, Plan::zero2(), AdamW{});
    train_step(model, engine);
    EXPECT_TRUE(says(thrown_by([&] { engine.save("/proc/no-such-folder"); }), {"/proc/no-such-folder", "rank 0"}));
    EXPECT_TRUE(says(thrown_by([&] { engine.load("/proc/no-such-folder"); }), {"/proc/no-such-folder"}));
    EXPECT_TRUE(train_step(model, engine).applied);
  });
}

TEST(CheckpointRetention, KeepsTheNewestAndEveryOther) {
  const Folder folder;
  on_ranks<Lm>({Plan::zero1(), 2}, {}, [&](Lm& model, Engine& engine, int) {
    for (int step = 0; step < 6; ++step) {
      train_step(model, engine);
      engine.save(folder.path(), {.keep_last = 2, .keep_every = 3});
    }
  });
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path()))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"step-000003", "step-000005", "step-000006"}));
}

}  // namespace
}  // namespace zero::test
