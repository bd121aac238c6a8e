// Saves behind training: what they publish, what they cost and tell, and what the program asks of all ranks.
#include <torch/torch.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <map>

#include "folder.h"
#include "gate_env.h"
#include "optimizers.h"
#include "states.h"
#include "zero/error.h"

namespace zero::test::background_saves_test {

namespace fs = std::filesystem;

// The steps until a report tells how a save ended.
StepReport told(Lm& model, Engine& engine) {
  for (;;) {
    const StepReport report = train_step(model, engine);
    if (!report.saved.empty() || !report.save_fault.empty()) return report;
  }
}

TEST(BackgroundSaves, HaveTheBitsOfTheStepInWhichTheyBegan) {
  const Folder folder;
  for (const Plan& plan : {Plan::ddp(), Plan::zero2(), Plan::zero3().bf16()}) {
    const std::string place = folder.path() + "/" + plan.label();
    const auto then = std::make_shared<MemoryState>(), loaded = std::make_shared<MemoryState>();
    on_ranks<Lm>({plan, 3}, {}, [&](Lm& model, Engine& engine, int) {
      train_step(model, engine);
      then->add(engine.state());
      EXPECT_EQ(engine.save(place, {.background = true}), place + "/step-000001");
      for (int step = 0; step < 3; ++step) train_step(model, engine);
      engine.finish_save();
      EXPECT_EQ(engine.finish_save(), "") << "it was told of";
      engine.load(place);
      loaded->add(engine.state());
    });
    EXPECT_EQ(then->faults(), "");
    EXPECT_EQ(difference(*then, *loaded), "") << plan.label();
  }
}

// While nothing can be written, steps go on, and the copy is the one thing that is held beside the states.
TEST(BackgroundSaves, GoOnBehindTraining) {
  const Folder folder;
  GateEnv gate;
  gate.shut();
  run_ranks(2, [&](const World& world) {
    Lm model;
    Engine engine(model, world, Plan::zero2(), AdamW{});
    train_step(model, engine);
    const Ledger before = engine.ledger();
    engine.save(folder.path(), {.background = true});
    const Ledger during = engine.ledger();
    EXPECT_GT(during[Owner::snapshot].bytes, 0);
    EXPECT_LE(during[Owner::snapshot].bytes, 2 * engine.estimate().held[Owner::snapshot].peak)
        << "all of it, where tensors are small";
    EXPECT_EQ(during.total() - during[Owner::snapshot].bytes, before.total());
    for (int step = 0; step < 3; ++step) EXPECT_EQ(train_step(model, engine).saved, "");
    EXPECT_FALSE(fs::exists(folder.path() + "/step-000001"));
    EXPECT_TRUE(says(thrown_by([&] { engine.save(folder.path(), {.while_saving = WhileSaving::refuse}); }),
                     {"still under way", "WhileSaving::wait"}));
    world.communicator().barrier().wait();  // nobody opens before all are refused
    gate.open_gate();
    const StepReport report = told(model, engine);
    EXPECT_EQ(report.saved, folder.path() + "/step-000001");
    EXPECT_EQ(report.save_fault, "");
    EXPECT_EQ(train_step(model, engine).saved, "") << "once";
    engine.save(folder.path(), {.background = true});
    EXPECT_EQ(engine.ledger()[Owner::snapshot].bytes, during[Owner::snapshot].bytes) << "its memory is kept";
    EXPECT_NE(engine.finish_save(), "");
  });
}

TEST(BackgroundSaves, ThatFailAreToldOfByTheNextReportOrSave) {
  const Folder folder;
  GateEnv gate;
  std::array<std::int64_t, 2> step{};
  run_ranks(2, [&](const World& world) {
    Lm model;
    Engine engine(model, world, Plan::zero3(), AdamW{});
    train_step(model, engine);
    engine.save(folder.path());
    gate.fail_all();
    engine.save(folder.path(), {.replace = true, .background = true});
    const StepReport report = told(model, engine);
    step[static_cast<std::size_t>(world.rank())] = report.step;
    EXPECT_EQ(report.saved, "");
    EXPECT_TRUE(says(report.save_fault, {"step-000001 was not saved", "rank 0", "rank 1", "no room"}));
    engine.save(folder.path(), {.background = true});
    EXPECT_TRUE(says(thrown_by([&] { engine.save(folder.path()); }), {"before this one failed", "no room"}));
    engine.save(folder.path(), {.background = true});
    EXPECT_TRUE(says(thrown_by([&] { engine.finish_save(); }), {"was not saved", "no room"}));
    world.communicator().barrier().wait();
    gate.open_gate();
    EXPECT_EQ(engine.load(folder.path()).step, 1) << "what was published stays";
    EXPECT_TRUE(train_step(model, engine).applied);
  });
  EXPECT_EQ(step[0], step[1]) << "all ranks hear of it after the same step";
}

TEST(BackgroundSaves, AreWaitedForByAnEngineThatEnds) {
  const Folder folder;
  run_ranks(2, [&](const World& world) {
    Lm model;
    Engine engine(model, world, Plan::zero1(), AdamW{});
    train_step(model, engine);
    engine.save(folder.path(), {.background = true});
  });
  EXPECT_TRUE(fs::exists(folder.path() + "/step-000001/manifest.json"));
}

TEST(UserValues, ComeBackOnEveryRank) {
  const Folder folder;
  for (const bool background : {false, true})
    run_ranks(2, [&](const World& world) {
      Lm model;
      Engine engine(model, world, Plan::zero3(), AdamW{});
      train_step(model, engine);
      const std::string name = "sampler of rank " + std::to_string(world.rank());
      std::vector<std::int64_t> mine{world.rank(), 7, -1};
      const std::vector<float> nothing;
      SaveOptions options{.user = R"({"epoch": 2})", .tensors = {{name, Dtype::i64, {3}, mine.data()}}};
      if (world.rank() == 0) options.tensors.push_back({"empty", Dtype::f32, {0, 4}, nothing.data()});
      options.background = background;
      options.replace = true;
      engine.save(folder.path(), options);
      mine.assign(3, 99);
      engine.finish_save();
      const Restored restored = engine.load(folder.path());
      EXPECT_EQ(restored.user, R"({"epoch": 2})");
      ASSERT_EQ(restored.tensors.size(), 3u);
      std::map<std::string, std::vector<std::int64_t>> seen;
      for (const RestoredTensor& each : restored.tensors) {
        std::vector<std::int64_t>& values = seen[each.name];
        values.resize(each.values.size() / sizeof(std::int64_t));
        if (!values.empty()) std::memcpy(values.data(), each.values.data(), each.values.size());
      }
      EXPECT_EQ(seen, (std::map<std::string, std::vector<std::int64_t>>{
                          {"empty", {}}, {"sampler of rank 0", {0, 7, -1}}, {"sampler of rank 1", {1, 7, -1}}}));
    });
}

TEST(UserValues, OfOneNameOnTwoRanksAreRefused) {
  const Folder folder;
  run_ranks(2, [&](const World& world) {
    Lm model;
    Engine engine(model, world, Plan::zero1(), AdamW{});
    const float value = 1;
    EXPECT_TRUE(says(thrown_by([&] {
                       engine.save(folder.path(), {.tensors = {{"same", Dtype::f32, {1}, &value}}});
                     }),
                     {"same"}));
    EXPECT_TRUE(train_step(model, engine).applied);
  });
}

// What one rank asks, all hear after the same step, and once.
TEST(Requests, AreToldToAllRanks) {
  for (const int ranks : {1, 3})
    run_ranks(ranks, [&](const World& world) {
      Lm model;
      Engine engine(model, world, Plan::zero2().accumulate(2), AdamW{});
      EXPECT_EQ(train_step(model, engine).requests, 0u);
      if (world.rank() == ranks - 1) engine.request(1);
      if (world.rank() == 0) engine.request(1u << 31);
      engine.backward(model.loss(engine.micro_batch()));
      EXPECT_EQ(engine.step().requests, 0u) << "no step yet";
      engine.backward(model.loss(engine.micro_batch()));
      EXPECT_EQ(engine.step().requests, 1u | 1u << 31);
      EXPECT_EQ(train_step(model, engine).requests, 0u);
    });
}

}  // namespace zero::test::background_saves_test
