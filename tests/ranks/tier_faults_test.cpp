// Engines whose states are on disks that fail: one error that says which file, where, which state and whose, no rank
// that waits for ever, and a checkpoint that loads afterwards.
#include <torch/torch.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "faulty_disks.h"
#include "folder.h"
#include "lm.h"
#include "zero/error.h"

namespace zero::test::tier_faults_test {

using OnResult = std::function<std::int64_t(const DiskTransfer& transfer, std::int64_t result)>;

// The disks of the engines that this thread builds, for one state, which fail when they are told to.
class FaultyState {
 public:
  explicit FaultyState(State state, bool checks = false) : options_(on_.options(DiskQueueKind::automatic)) {
    options_.checks = checks;
    replace_stores([this, state](State of, Store::Book book) -> std::unique_ptr<Store> {
      if (of != state) return nullptr;
      return std::make_unique<DiskStore>(options_, on_.memory, std::move(book), on_.system);
    });
  }
  ~FaultyState() { replace_stores(nullptr); }
  FaultyState(const FaultyState&) = delete;
  FaultyState& operator=(const FaultyState&) = delete;

  const DiskOptions& options() const { return options_; }
  std::string folder() const { return on_.folder(); }
  FaultyDisks& system() { return on_.system; }
  // The `nth` transfer from now on that `which` of reads or writes is fails so.
  void fail(int error, bool writes, int nth) {
    left_ = nth;
    on_.system.on_result = [this, error, writes](const DiskTransfer& transfer, std::int64_t result) -> std::int64_t {
      return transfer.writes == writes && left_-- == 0 ? -error : result;
    };
  }
  void heal() { on_.system.on_result = nullptr; }

 private:
  OnDisks on_;
  DiskOptions options_;
  std::atomic<int> left_{0};
};

Plan all_on_disk(Plan plan) {
  for (const State state : {State::parameter, State::gradient, State::optimizer})
    plan = plan.offload(state, Tier::disk);
  return plan;
}

struct Fault {
  State state;
  int error;
  bool writes;
  std::string words;
};

const std::vector<Fault> kFaults{
    {State::parameter, EIO, false, "Input/output error"},        {State::parameter, EIO, true, "Input/output error"},
    {State::parameter, ENOSPC, true, "No space left on device"}, {State::gradient, EIO, false, "Input/output error"},
    {State::gradient, ENOSPC, true, "No space left on device"},  {State::optimizer, EIO, false, "Input/output error"},
    {State::optimizer, EIO, true, "Input/output error"}};

// What each rank's step throws when the disk of rank 1 fails.
std::vector<std::string> thrown_on_ranks(const Fault& fault, int nth, const Plan& plan, std::string* folder) {
  std::vector<std::string> thrown(2);
  run_ranks(2, [&](const World& world) {
    FaultyState faulty(fault.state);
    Lm model;
    initialise(model, kSeed);
    Engine engine(model, world, plan, AdamW{}, {.disk = faulty.options()});
    train_step(model, engine);
    if (world.rank() == 1) {
      *folder = faulty.folder();
      faulty.fail(fault.error, fault.writes, nth);
    }
    thrown[static_cast<std::size_t>(world.rank())] = thrown_by([&] {
      for (int step = 0; step < 2; ++step) train_step(model, engine);
    });
    faulty.heal();
  });
  return thrown;
}

TEST(TierFaults, EndOneRankWithWhatFailedAndTheOthersSoon) {
  for (const Plan& preset : {Plan::zero3(), Plan::zero3().bf16().accumulate(2)})
    for (const Fault& fault : kFaults)
      for (const int nth : {0, 5}) {
        std::string folder;
        const std::vector<std::string> thrown = thrown_on_ranks(fault, nth, all_on_disk(preset), &folder);
        SCOPED_TRACE(thrown[1]);
        EXPECT_TRUE(says(thrown[1], {"rank 1: ", " of unit '", std::string(name(fault.state)) + " of unit ",
                                     fault.writes ? "cannot write " : "cannot read ", " bytes at offset ",
                                     "without a name in '" + folder + "'", fault.words}));
        EXPECT_NE(thrown[0], "");
        EXPECT_EQ(thrown[0].find("cannot "), std::string::npos) << thrown[0];
      }
}

// On this thread, one rank.
class TierFaultsOfOne : public testing::TestWithParam<State> {
 protected:
  // The state's disk from now on.
  FaultyState& disk(bool checks = false) {
    engine_.reset();
    faulty_.reset();
    return faulty_.emplace(GetParam(), checks);
  }
  void build(FaultyState& faulty) {
    engine_.reset();
    model_ = std::make_shared<Lm>();
    initialise(*model_, kSeed);
    engine_.emplace(*model_, World(), all_on_disk(Plan::zero3().bf16()), AdamW{}, Options{.disk = faulty.options()});
  }

  std::optional<FaultyState> faulty_;
  std::shared_ptr<Lm> model_;
  std::optional<Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(All, TierFaultsOfOne, testing::Values(State::parameter, State::gradient, State::optimizer),
                         [](const auto& tested) { return std::string(name(tested.param)); });

// A step that failed halfway ends the engine; another one goes on from the checkpoint as if nothing had been.
TEST_P(TierFaultsOfOne, LeaveACheckpointFromWhichAnotherGoesOn) {
  const Folder folder;
  FaultyState& faulty = disk();
  build(faulty);
  train_step(*model_, *engine_);
  engine_->save(folder.path());
  const double next = train_step(*model_, *engine_).loss;
  engine_->load(folder.path());
  EXPECT_EQ(train_step(*model_, *engine_).loss, next);
  bool broken = false;
  for (int nth = 0; !broken; ++nth) {
    build(faulty);
    engine_->load(folder.path());
    engine_->backward(model_->loss(engine_->micro_batch()));
    faulty.fail(EIO, GetParam() != State::gradient, nth);
    const std::string text = thrown_by([&] { engine_->step(); });
    faulty.heal();
    ASSERT_TRUE(says(text, {"rank 0: ", std::string(name(GetParam())) + " of unit ", "Input/output error"})) << nth;
    broken = says(thrown_by([&] { engine_->discard(); }), {"a step failed halfway", "start again"});
  }
  build(faulty);
  engine_->load(folder.path());
  EXPECT_EQ(train_step(*model_, *engine_).loss, next);
}

TEST_P(TierFaultsOfOne, OfShortTransfersAreNone) {
  const auto losses = [&](bool shortened) {
    FaultyState& faulty = disk(/*checks=*/true);
    std::int64_t parts = 0;
    if (shortened)
      faulty.system().on_result = [&](const DiskTransfer&, std::int64_t result) {
        return ++parts % 2 == 0 ? std::max<std::int64_t>(result - 1000, 1) : result;
      };
    build(faulty);
    std::vector<double> all;
    for (int step = 0; step < 3; ++step) all.push_back(train_step(*model_, *engine_).loss);
    engine_.reset();
    return all;
  };
  EXPECT_EQ(losses(false), losses(true));
}

TEST_P(TierFaultsOfOne, OfAWrongByteAreFound) {
  FaultyState& faulty = disk(/*checks=*/true);
  build(faulty);
  train_step(*model_, *engine_);
  faulty.system().on_result = [](const DiskTransfer& transfer, std::int64_t result) {
    if (!transfer.writes) transfer.memory[transfer.bytes / 2] ^= 4;
    return result;
  };
  const std::string text = thrown_by([&] { train_step(*model_, *engine_); });
  faulty.heal();
  EXPECT_TRUE(says(text, {"rank 0: ", std::string(name(GetParam())) + " of unit ", "are not what was written"}));
}

// A disk that is full is told of before training, and the model is as it was.
TEST_P(TierFaultsOfOne, OfTooLittleSpaceAreToldAtTheStart) {
  FaultyState& faulty = disk();
  faulty.system().on_allocate = [](std::int64_t) { return -ENOSPC; };
  const std::string text = thrown_by([&] {
    build(faulty);
    train_step(*model_, *engine_);  // the first micro-batch takes gradients
  });
  EXPECT_TRUE(says(text, {"No space left on device"}));
  engine_.reset();
  faulty.system().on_allocate = nullptr;
  build(faulty);
  train_step(*model_, *engine_);
}

}  // namespace zero::test::tier_faults_test
