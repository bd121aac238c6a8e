// Engines that save and load themselves: what goes on from a checkpoint is what went on without one, to the bit, under
// any plan and on any number of ranks that give the same bits.
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "covering.h"
#include "folder.h"
#include "optimizers.h"
#include "states.h"
#include "zero/error.h"

namespace zero::test::checkpoint_test {

namespace fs = std::filesystem;

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
    EXPECT_EQ(engine.ledger()[Owner::snapshot].peak, 0) << "without a copy";
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

using Change = std::tuple<Precision, Precision, int>;
class CheckpointPrecision : public testing::TestWithParam<Change> {};

// The values that count, in fp32: main weights, or parameters with what rounding cut off them.
std::map<std::string, at::Tensor> main_values(StatesModelImpl& model, Engine& engine) {
  std::map<std::string, at::Tensor> values;
  for (const auto& each : model.named_parameters())
    if (each.value().requires_grad()) values[each.key()] = engine.main_parameter(each.value());
  return values;
}

// From any precision to any other: the values are those of the wider one, rounded once where the new one has no room,
// and the optimizer goes on.
TEST_P(CheckpointPrecision, Changes) {
  const auto [from, to, ranks] = GetParam();
  const Folder folder;
  std::map<std::string, at::Tensor> saved, loaded;
  std::int64_t steps = 0;
  on_ranks<StatesModelImpl>({Plan::zero2().precision(from), ranks}, {},
                            [&](StatesModelImpl& model, Engine& engine, int rank) {
                              for (int step = 0; step < 2; ++step) train_step(model, engine);
                              engine.save(folder.path());
                              auto values = main_values(model, engine);
                              if (rank == 0) saved = std::move(values);
                            });
  on_ranks<StatesModelImpl>({Plan::zero3().precision(to), ranks}, {},
                            [&](StatesModelImpl& model, Engine& engine, int rank) {
                              engine.load(folder.path());
                              auto values = main_values(model, engine);
                              EXPECT_TRUE(train_step(model, engine).applied);
                              if (rank == 0) loaded = std::move(values), steps = engine.steps();
                            });
  EXPECT_EQ(steps, 3);
  ASSERT_EQ(saved.size(), loaded.size());
  const bool narrow = to == Precision::bf16_sr || to == Precision::bf16_pure;
  for (const auto& [name, values] : saved) {
    const at::Tensor expected = narrow ? values.to(at::kBFloat16).to(at::kFloat) : values;
    EXPECT_TRUE(at::equal(expected, loaded.at(name))) << name;
  }
}

std::vector<Change> changes() {
  std::vector<Change> all;
  const std::vector precisions{Precision::fp32, Precision::bf16,    Precision::fp16,
                               Precision::fp8,  Precision::bf16_sr, Precision::bf16_pure};
  for (const Precision from : precisions)
    for (const Precision to : precisions)
      if (from != to) all.emplace_back(from, to, from == Precision::fp32 ? 2 : 1);
  return all;
}

std::string change_of(const testing::TestParamInfo<Change>& tested) {
  const auto& [from, to, ranks] = tested.param;
  return in_title(std::string(name(from))) + "To" + in_title(std::string(name(to)));
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointPrecision, testing::ValuesIn(changes()), change_of);

// What rounding cut off comes along, up to the last bit that it has room for.
TEST(CheckpointPrecisions, KnowWhatRoundingCutOff) {
  const Folder folder;
  std::map<std::string, at::Tensor> exact, kept, back;
  on_ranks<StatesModelImpl>({Plan::zero2(), 2}, {}, [&](StatesModelImpl& model, Engine& engine, int rank) {
    for (int step = 0; step < 2; ++step) train_step(model, engine);
    engine.save(folder.path() + "/fp32");
    auto values = main_values(model, engine);
    if (rank == 0) exact = std::move(values);
  });
  on_ranks<StatesModelImpl>({Plan::zero3().precision(Precision::bf16_kahan), 2}, {},
                            [&](StatesModelImpl&, Engine& engine, int) {
                              engine.load(folder.path() + "/fp32");
                              engine.save(folder.path() + "/kahan");
                            });
  on_ranks<StatesModelImpl>({Plan::ddp(), 2}, {}, [&](StatesModelImpl& model, Engine& engine, int rank) {
    engine.load(folder.path() + "/kahan");
    auto values = main_values(model, engine);
    if (rank == 0) back = std::move(values);
  });
  for (const auto& [name, values] : exact) {
    EXPECT_TRUE(at::allclose(values, back.at(name), 0x1p-14, 1e-30)) << name;
    EXPECT_FALSE(values.numel() > 8 && at::allclose(values, values.to(at::kBFloat16).to(at::kFloat), 0x1p-14, 1e-30));
  }
}

TEST(CheckpointLoads, TakeWeightsAlone) {
  const Folder folder;
  std::map<std::string, at::Tensor> saved, loaded;
  on_ranks<StatesModelImpl>({Plan::zero2().bf16(), 2, Lion{.lr = 1e-3}, {.seed = 3}}, {},
                            [&](StatesModelImpl& model, Engine& engine, int rank) {
                              for (int step = 0; step < 2; ++step) train_step(model, engine);
                              engine.save(folder.path(), {.user = "7"});
                              auto values = main_values(model, engine);
                              if (rank == 0) saved = std::move(values);
                            });
  on_ranks<StatesModelImpl>(
      {Plan::zero3(), 3, AdamW{}, {.seed = 4}}, {}, [&](StatesModelImpl& model, Engine& engine, int rank) {
        EXPECT_TRUE(says(thrown_by([&] { engine.load(folder.path()); }), {"is of lion (exp_avg), and not of adamw"}));
        const Restored restored = engine.load(folder.path(), {.weights_only = true});
        EXPECT_EQ(restored.step, 0);
        EXPECT_EQ(restored.user, "7");
        EXPECT_EQ(engine.micro_batch(), rank) << "the data begins";
        EXPECT_EQ(engine.state().scalars().seed, 4u);
        auto values = main_values(model, engine);
        if (rank == 0) loaded = std::move(values);
        EXPECT_TRUE(train_step(model, engine).applied);
      });
  ASSERT_EQ(saved.size(), loaded.size());
  for (const auto& [name, values] : saved) EXPECT_TRUE(at::equal(values, loaded.at(name))) << name;
}

TEST(CheckpointLoads, BeginANewOptimizerWhereTheyAreAsked) {
  const Folder folder;
  on_ranks<StatesModelImpl>({Plan::zero2(), 2}, {}, [&](StatesModelImpl& model, Engine& engine, int) {
    for (int step = 0; step < 2; ++step) train_step(model, engine);
    engine.save(folder.path());
  });
  const std::vector<Optimizer> others{Lion{.lr = 1e-3}, Adafactor{}, AdamW{.format = MomentFormat::block8}, AdaGrad{},
                                      Sgd{.lr = 1e-2}};
  for (const Optimizer& other : others) {
    SCOPED_TRACE(name(other));
    on_ranks<StatesModelImpl>({Plan::zero3(), 2, other}, {}, [&](StatesModelImpl& model, Engine& engine, int) {
      EXPECT_TRUE(says(thrown_by([&] { engine.load(folder.path()); }), {"exp_avg_sq"}));
      EXPECT_EQ(engine.load(folder.path(), {.allow_new_optimizer = true}).step, 2);
      EXPECT_EQ(engine.steps(), 2);
      EXPECT_TRUE(train_step(model, engine).applied);
    });
  }
}

// What is not trained stays what the engine has that loads.
TEST(CheckpointLoads, KeepFrozenParametersThatWereLeftOut) {
  const Folder folder;
  const auto frozen = [](const StatesModelImpl& model) {
    std::vector<std::string> names;
    for (const auto& each : model.named_parameters())
      if (!each.value().requires_grad()) names.push_back(each.key());
    return names;
  };
  std::int64_t with = 0, without = 0;
  const Job job{Plan::zero3().bf16(), 2};
  on_ranks<StatesModelImpl>(job, {}, [&](StatesModelImpl& model, Engine& engine, int) {
    ASSERT_FALSE(frozen(model).empty());
    train_step(model, engine);
    engine.save(folder.path() + "/with");
    engine.save(folder.path() + "/without", {.frozen = false});
  });
  for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
    if (entry.is_regular_file() && entry.path().extension() == ".safetensors")
      (entry.path().string().find("/without/") == std::string::npos ? with : without) +=
          static_cast<std::int64_t>(entry.file_size());
  EXPECT_LT(without, with);
  on_ranks<StatesModelImpl>(job, {}, [&](StatesModelImpl& model, Engine& engine, int) {
    const at::NoGradGuard no_grad;
    std::map<std::string, at::Tensor> before;
    const auto values = [&](const std::string& name) {
      const Gather whole = gather({model.named_parameters()[name]});
      return model.named_parameters()[name].detach().clone();
    };
    for (const std::string& name : frozen(model)) {
      const Gather whole = gather({model.named_parameters()[name]});
      model.named_parameters()[name].fill_(7);
    }
    EXPECT_EQ(engine.load(folder.path() + "/without").step, 1);
    for (const std::string& name : frozen(model)) EXPECT_TRUE(values(name).eq(7).all().item<bool>()) << name;
    engine.load(folder.path() + "/with");
    for (const std::string& name : frozen(model)) EXPECT_FALSE(values(name).eq(7).all().item<bool>()) << name;
  });
}

// A model that differs is told of as a whole.
TEST(CheckpointLoads, ListAllDifferencesAtOnce) {
  struct Other : torch::nn::Module {
    Other()
        : a(register_module("embed", torch::nn::Linear(3, 4))), b(register_module("extra", torch::nn::Linear(2, 2))) {}
    torch::nn::Linear a, b;
  };
  const Folder folder;
  on_ranks<Lm>({Plan::zero2(), 1}, {}, [&](Lm& model, Engine& engine, int) {
    train_step(model, engine);
    engine.save(folder.path());
  });
  run_ranks(1, [&](const World& world) {
    Other model;
    Engine engine(model, world, Plan::ddp(), AdamW{});
    const std::string text = thrown_by([&] { engine.load(folder.path()); });
    EXPECT_TRUE(
        says(text, {"embed.weight", "embed.bias", "extra.weight", "extra.bias", "is missing", "is not expected"}))
        << text;
    const std::string weights = thrown_by([&] { engine.load(folder.path(), {.weights_only = true}); });
    EXPECT_TRUE(says(weights, {"extra.weight", "is not expected"}));
    for (const char* needless : {"moment", "how often"}) EXPECT_EQ(weights.find(needless), weights.npos) << weights;
  });
}

// The last byte of what rank 1 wrote, and reads.
void damage(const std::string& checkpoint) {
  std::fstream file(checkpoint + "/rank-00001.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x55');
}

// Of which one rank alone hears.
TEST(CheckpointFaults, EndAnEngineThatReadTheOnlyOneInPart) {
  const Folder folder;
  on_ranks<Lm>({Plan::zero3(), 2}, {}, [&](Lm& model, Engine& engine, int rank) {
    train_step(model, engine);
    const std::string only = engine.save(folder.path());
    if (rank == 0) damage(only);
  });
  on_ranks<Lm>({Plan::zero3(), 2}, {}, [&](Lm& model, Engine& engine, int) {
    EXPECT_TRUE(says(thrown_by([&] { engine.load(folder.path()); }),
                     {"none that is whole", "step-000001", "rank 1: ", "rank-00001.safetensors, bytes "}));
    EXPECT_TRUE(says(thrown_by([&] { train_step(model, engine); }), {"halfway"}));
  });
}

// Of one rank, for which the others would wait.
TEST(CheckpointFaults, OfTheProgramsValuesAreToldToAll) {
  const Folder folder;
  on_ranks<Lm>({Plan::zero2(), 2}, {}, [&](Lm& model, Engine& engine, int rank) {
    train_step(model, engine);
    for (const int faulty : {0, 1})
      for (const bool background : {false, true}) {
        const SaveOptions options{.user = rank == faulty ? "spoilt" : "", .background = background};
        EXPECT_TRUE(says(thrown_by([&] { engine.save(folder.path(), options); }),
                         {"rank " + std::to_string(faulty), "no JSON: spoilt"}));
      }
    const std::array<float, 1> value{};
    const UserTensor tensor{"seen", Dtype::f32, {1}, value.data()};
    EXPECT_TRUE(says(thrown_by([&] { engine.save(folder.path(), {.tensors = {tensor}}); }),
                     {"several tensors of the program's are called 'seen'", "with the rank in it"}));
    EXPECT_NE(engine.save(folder.path(), {.user = "[]"}), "");
  });
}

TEST(CheckpointFaults, PassOverADamagedOneAndNameIt) {
  const Folder folder;
  const Job job{Plan::zero3(), 2};
  std::array<double, 2> second{};
  on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int rank) {
    train_step(model, engine);
    engine.save(folder.path());
    second[static_cast<std::size_t>(rank)] = train_step(model, engine).loss;
    const std::string newest = engine.save(folder.path());
    if (rank == 0) damage(newest);
  });
  on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int rank) {
    EXPECT_EQ(engine.load(folder.path()).step, 1);
    EXPECT_EQ(train_step(model, engine).loss, second[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(engine.load(folder.path()).step, 1) << "also over what was trained since";
    const std::string text = thrown_by([&] { engine.load(folder.path(), {.step = 7}); });
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

// Of which one rank alone knows: the others would wait for it.
TEST(CheckpointFaults, OfOneRankBeforeItSavesAreToldToAll) {
  const Folder folder;
  on_ranks<Lm>({Plan::zero1().accumulate(2), 2}, {}, [&](Lm& model, Engine& engine, int rank) {
    train_step(model, engine);
    for (const bool background : {false, true}) {
      if (rank == 1) engine.backward(model.loss(0));
      EXPECT_TRUE(says(thrown_by([&] { engine.save(folder.path(), {.background = background}); }),
                       {"nothing is saved to " + folder.path(), "rank 1: ", "1 of its 2 micro-batches are held"}));
      engine.discard();
    }
    EXPECT_TRUE(train_step(model, engine).applied);
    EXPECT_EQ(engine.save(folder.path()), folder.path() + "/step-000002");
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

}  // namespace zero::test::checkpoint_test
