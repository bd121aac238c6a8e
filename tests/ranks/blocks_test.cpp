// What the optimizer keeps lies in a store that is never addressable: the same bits as in memory, through buffers of
// constant size, and failures that are told of.
#include <torch/torch.h>

#include <optional>

#include "late_stores.h"
#include "states.h"
#include "zero/error.h"

namespace zero::test::blocks_test {

// Bytes under way, and of the buffers.
std::pair<std::int64_t, std::int64_t> buffers_for(std::int64_t size, const Optimizer& optimizer) {
  const auto watch = std::make_shared<LateWatch>();
  std::int64_t buffers = 0;
  const Job job{Plan::ddp().bf16(), 1, optimizer};
  on_ranks<Wide>(job, in_late_stores<Wide>(watch, {.make = [size] { return std::make_shared<Wide>(size); }}),
                 [&](Wide& model, Engine& engine, int) {
                   for (int step = 0; step < 2; ++step) train_step(model, engine);
                   buffers = engine.ledger()[Owner::update].bytes;
                   EXPECT_EQ(engine.ledger().on(Tier::disk, Owner::optimizer).bytes, engine.estimate().state.optimizer);
                 });
  expect_no_fault(watch);
  return {watch->most, buffers};
}

TEST(BlocksBuffers, AreConstantInNumberAndSize) {
  for (const Optimizer& optimizer : {Optimizer(AdamW{}), narrow_moments()[1], narrow_moments()[2]}) {
    const auto small = buffers_for(100, optimizer), large = buffers_for(200, optimizer);
    SCOPED_TRACE(describe(optimizer));
    EXPECT_EQ(small.second, 3 * 4 * LateStore::kTransfer);
    EXPECT_EQ(large.second, small.second);
    for (const std::int64_t under_way : {small.first, large.first}) {
      EXPECT_LE(under_way, small.second);
      EXPECT_GT(under_way, 0);
    }
  }
}

TEST(BlocksBuffers, AreNotTakenWhereBlocksAreInMemory) {
  const Job job{Plan::ddp().bf16(), 1};
  on_ranks<Wide>(job, {.make = [] { return std::make_shared<Wide>(48); }}, [&](Wide& model, Engine& engine, int) {
    train_step(model, engine);
    EXPECT_EQ(engine.ledger()[Owner::update].peak, 0);
  });
}

struct Told {
  States state = std::make_shared<MemoryState>();
  Outcome end;
};

std::vector<Job> stated_jobs() {
  std::vector<Job> jobs;
  for (const Optimizer& optimizer :
       {Optimizer(AdamW{.lr = 2e-3, .eps = 1e-4}), narrow_moments()[1], Optimizer(Adafactor{.weight_decay = 0.1})})
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::bf16_kahan}) {
      jobs.push_back({Plan::zero3().precision(precision), 2, optimizer, {.seed = 3}});
      jobs.push_back({Plan::ddp().precision(precision), 1, optimizer, {.seed = 3}});
    }
  return jobs;
}

// Two steps from `from`, or from the beginning, then one from what a gather scope wrote.
Told stepped(const Job& job, const States& from, const Course<StatesModelImpl>& course) {
  Told told;
  told.end = train_by(job, course, [&](StatesModelImpl& model, Engine& engine, Outcome& run, int) {
    if (from) engine.load_state(*from);
    for (int step = 0; step < 2; ++step) run.record(train_step(model, engine));
    {
      const Gather scope({model.embed->weight, model.turned});
      const torch::NoGradGuard no_grad;
      model.embed->weight.slice(0, 3, 20).mul_(1.25);
      model.turned.add_(0.5);
    }
    told.state->add(engine.state());
    run.record(train_step(model, engine));
  });
  EXPECT_EQ(told.state->faults(), "");
  return told;
}

TEST(BlocksState, IsToldWrittenAndLoadedAsInMemory) {
  for (const Job& job : stated_jobs()) {
    SCOPED_TRACE(describe(job) + std::string(name(job.plan.precision())));
    const auto watch = std::make_shared<LateWatch>();
    const Told here = stepped(job, {}, {}), there = stepped(job, {}, in_late_stores<StatesModelImpl>(watch));
    EXPECT_EQ(difference(*here.state, *there.state), "");
    EXPECT_EQ(difference(here.end, there.end), "");
    const Told on = stepped(job, here.state, {});
    const Told late = stepped(job, here.state, in_late_stores<StatesModelImpl>(watch));
    EXPECT_EQ(difference(*on.state, *late.state), "");
    EXPECT_EQ(difference(on.end, late.end), "");
    expect_no_fault(watch);
  }
}

// Engines of one rank on this thread, whose stores fail.
class FailingStores : public testing::Test {
 protected:
  void build() {
    engine_.reset();
    model_ = std::make_shared<Lm>();
    initialise(*model_, kSeed);
    engine_.emplace(*model_, World(), Plan::ddp().bf16(), AdamW{});
  }
  // What `call` throws when the `operation`th operation of the stores fails.
  std::string thrown_when(int operation, const std::function<void()>& call) {
    watch_->fails_at = operation;
    std::string text = thrown_by(call);
    watch_->fails_at = -1;
    expect_no_fault(watch_);
    return text;
  }
  void expect_broken() {
    EXPECT_TRUE(says(thrown_by([&] { engine_->discard(); }), {"rank 0", "halfway", "start again"}));
    EXPECT_TRUE(says(thrown_by([&] { engine_->state(); }), {"halfway"}));
  }

  Watch watch_ = std::make_shared<LateWatch>();
  Late late_{watch_};
  std::shared_ptr<Lm> model_;
  std::optional<Engine> engine_;
};

TEST_F(FailingStores, EndAnEngineWhoseStepTheyFail) {
  int failures = 0;
  for (int operation = 0;; operation += 7) {
    build();
    const std::string text = thrown_when(operation, [&] { train_step(*model_, *engine_); });
    if (text.empty()) break;
    ++failures;
    EXPECT_TRUE(says(text, {"rank 0: the update of unit '", "the late store failed to "}));
    expect_broken();
  }
  EXPECT_GT(failures, 3);
}

TEST_F(FailingStores, EndAnEngineWhoseScopeTheyFail) {
  build();
  const auto write = [&] {
    const Gather scope({model_->embed->weight});
    const torch::NoGradGuard no_grad;
    model_->embed->weight.add_(1);
  };
  EXPECT_TRUE(says(thrown_when(0, write), {"rank 0: what was written of unit '", "the late store failed to read"}));
  expect_broken();
}

TEST_F(FailingStores, LeaveTheModelWhereAnEngineIsBuilt) {
  const std::string text = thrown_when(0, [&] { build(); });
  EXPECT_TRUE(says(text, {"rank 0: the first optimizer state of unit '", "the late store failed to write"}));
  build();
  train_step(*model_, *engine_);
}

TEST_F(FailingStores, LeaveAnEngineThatIsOnlyRead) {
  build();
  train_step(*model_, *engine_);
  EXPECT_TRUE(says(thrown_when(0, [&] { static_cast<void>(engine_->main_parameter(model_->bias)); }),
                   {"rank 0: the main weights of unit '", "the late store failed to read"}));
  const EngineState state = engine_->state();
  const auto read = [&] {
    for (const StatePiece& piece : state.pieces()) piece.read([](std::int64_t, std::int64_t, const void*) {});
  };
  EXPECT_TRUE(says(thrown_when(0, read), {"the late store failed to read"}));
  read();
  train_step(*model_, *engine_);
}

TEST_F(FailingStores, EndAnEngineThatLoads) {
  build();
  train_step(*model_, *engine_);
  MemoryState state;
  state.add(engine_->state());
  EXPECT_TRUE(says(thrown_when(5, [&] { engine_->load_state(state); }),
                   {"the state could not be read: rank 0: ", "the late store failed to"}));
  expect_broken();
}

// One of LibTorch's updates main weights that it has a tensor of.
TEST_F(FailingStores, AreRefusedForOptimizersOfLibTorch) {
  model_ = std::make_shared<Lm>();
  const TorchOptimizer optimizer{.make =
                                     [](const std::vector<at::Tensor>& parameters) {
                                       return std::make_unique<torch::optim::AdamW>(parameters,
                                                                                    torch::optim::AdamWOptions());
                                     },
                                 .lr = 1e-3,
                                 .label = "AdamW"};
  EXPECT_TRUE(says(thrown_by([&] { engine_.emplace(*model_, World(), Plan::ddp().bf16(), optimizer); }),
                   {"optimizer AdamW", "tier disk", "one of the engine's"}));
}

// Many small parameters, side by side.
struct Dust : torch::nn::Module {
  Dust() {
    for (int i = 0; i < 20; ++i) register_parameter("p" + std::to_string(i), torch::full({32}, 0.1 * i));
  }
  at::Tensor loss(std::int64_t) {
    at::Tensor sum = torch::zeros({});
    for (const at::Tensor& each : parameters()) sum = sum + each.to(at::kFloat).square().sum();
    return sum;
  }
};

// Main weights and two moments are read once and written once, not once for each parameter.
TEST(SmallParameters, AreUpdatedTogether) {
  for (const auto& [plan, blocks] : {std::pair(Plan::ddp(), 2), std::pair(Plan::zero2().bf16(), 3)}) {
    const auto watch = std::make_shared<LateWatch>();
    const Course<Dust> course{.make = [] { return std::make_shared<Dust>(); }};
    on_ranks<Dust>({.plan = plan, .ranks = 1}, in_late_stores(watch, course), [&](Dust& model, Engine& engine, int) {
      for (int step = 0; step < 2; ++step) {
        const std::int64_t before = watch->operations;
        train_step(model, engine);
        EXPECT_EQ(watch->operations - before, 2 * blocks) << plan.label();
      }
    });
    expect_no_fault(watch);
  }
}

}  // namespace zero::test::blocks_test
