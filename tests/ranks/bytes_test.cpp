// What is held and what is sent, against the estimate: to the byte.
#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "folder.h"
#include "lm.h"
#include "memory/torch/arena_allocator.h"

namespace zero::test::bytes_test {

std::int64_t largest_unit(const Layout& layout) {
  std::int64_t bytes = 0;
  for (const UnitLayout& unit : layout.units()) bytes = std::max(bytes, unit.bytes());
  return bytes;
}

std::int64_t budget_of(const Engine& engine) {
  std::vector<std::int64_t> bytes;
  for (const UnitLayout& unit : engine.layout().units()) bytes.push_back(unit.bytes());
  std::sort(bytes.rbegin(), bytes.rend());
  const std::int64_t given = engine.plan().resident_budget();
  return given > 0 ? std::max(given, bytes[0]) : bytes[0] + bytes[1];
}

void expect_held(const Engine& engine) {
  const Ledger ledger = engine.ledger();
  const Estimate estimate = engine.estimate();
  EXPECT_EQ(ledger[Owner::parameter].bytes, estimate.state.parameter);
  EXPECT_EQ(ledger[Owner::gradient].bytes, estimate.state.gradient);
  EXPECT_EQ(ledger[Owner::optimizer].bytes, estimate.state.optimizer);
  EXPECT_LE(ledger[Owner::reduction].bytes, estimate.held[Owner::reduction].peak);
}

// A stack in which every unit is used once forward and once backward.
struct Stack : torch::nn::Module {
  explicit Stack(std::int64_t width = 64, int depth = 6) : width_(width) {
    for (int i = 0; i < depth; ++i) layers->push_back(torch::nn::Linear(width, width));
    register_module("layers", layers);
  }
  at::Tensor loss(std::int64_t index) { return layers->forward(numbers(index, {2, width_})).square().mean(); }

  torch::nn::Sequential layers;

 private:
  std::int64_t width_;
};

// Gathers of units: the all-gathers that are neither announcements nor the vote of a step. In common memory
// they are not announced, but the end of a step is.
std::int64_t gathers(const Engine& engine, std::int64_t steps) {
  const Traffic traffic = engine.traffic();
  const std::int64_t rest = traffic[Collective::all_gather].calls - traffic[Collective::reduce_scatter].calls;
  return engine.memory() == Memory::common ? rest - 3 * steps : (rest - 2 * steps) / 2;
}

TEST(Bytes, TheBackwardGathersEachUnitOnceMoreAndNoneTwice) {
  for (const std::int64_t budget : {std::int64_t{0}, std::int64_t{1}}) {
    on_ranks<Stack>({.plan = Plan::zero3().resident_budget(budget), .ranks = 3}, {},
                    [](Stack& model, Engine& engine, int) {
                      const auto units = static_cast<std::int64_t>(engine.layout().units().size());
                      train_step(model, engine);
                      engine.reset_traffic();
                      const at::Tensor loss = model.loss(engine.micro_batch());
                      EXPECT_EQ(gathers(engine, 0), units);
                      engine.reset_traffic();
                      engine.backward(loss);
                      EXPECT_LE(gathers(engine, 0), units);
                      EXPECT_EQ(engine.traffic()[Collective::reduce_scatter].calls, units);
                      engine.step();
                    });
  }
}

TEST(Bytes, ABudgetOfEverythingGathersNothingInTheBackward) {
  on_ranks<Lm>({.plan = Plan::zero3().resident_budget(std::int64_t{1} << 40).accumulate(2), .ranks = 2}, {},
               [](Lm& model, Engine& engine, int) {
                 const auto units = static_cast<std::int64_t>(engine.layout().units().size());
                 train_step(model, engine);
                 engine.reset_traffic();
                 train_step(model, engine);
                 EXPECT_EQ(gathers(engine, 1), units);
               });
}

TEST(Bytes, AnEvaluationGathersEachUnitOnceAndReducesNothing) {
  on_ranks<Stack>({.plan = Plan::zero3().resident_budget(1), .ranks = 2}, {}, [](Stack& model, Engine& engine, int) {
    train_step(model, engine);
    engine.reset_traffic();
    const torch::NoGradGuard no_grad;
    model.loss(0);
    EXPECT_EQ(gathers(engine, 0), static_cast<std::int64_t>(engine.layout().units().size()));
    EXPECT_EQ(engine.traffic()[Collective::reduce_scatter].calls, 0);
  });
}

TEST(Bytes, ZeroThreeNeverHoldsTheWholeModel) {
  const Course<Stack> course{.make = [] { return std::make_shared<Stack>(128, 12); }};
  on_ranks<Stack>({.plan = Plan::zero3(), .ranks = 4}, course, [](Stack& model, Engine& engine, int) {
    for (int step = 0; step < 3; ++step) {
      if (step == 1) engine.reset_peaks();
      train_step(model, engine);
    }
    const std::int64_t unit = largest_unit(engine.layout());
    EXPECT_LE(engine.ledger().peak_held, engine.estimate().state.total() + budget_of(engine) + unit);
    EXPECT_LT(engine.ledger()[Owner::gathered].peak, engine.layout().length() * 4 / 4);
  });
}

// What LibTorch's operators take on this thread at once, at most, as it was asked for.
class TensorsHere final : public MemoryObserver {
 public:
  TensorsHere() { observe_memory(this); }
  ~TensorsHere() override { observe_memory(nullptr); }
  TensorsHere(const TensorsHere&) = delete;
  TensorsHere& operator=(const TensorsHere&) = delete;

  void allocating(std::size_t bytes) override { asked_ = static_cast<std::int64_t>(bytes); }
  void allocated(void* data, std::size_t) override {
    sizes_[data] = asked_;
    most_ = std::max(most_, held_ += asked_);
  }
  void freed(void* data) override {
    if (const auto found = sizes_.find(data); found != sizes_.end()) {
      held_ -= found->second;
      sizes_.erase(found);
    }
  }
  std::int64_t most() const { return most_; }

 private:
  std::map<const void*, std::int64_t> sizes_;
  std::int64_t asked_ = 0, held_ = 0, most_ = 0;
};

// What a rank has at once of what is no state, at most, on all tiers: in steps, a save and a load.
struct Temporaries {
  std::map<std::string, std::int64_t> bytes;
  bool operator==(const Temporaries&) const = default;
};

Temporaries temporaries(Stack& model, Engine& engine, const std::string& folder) {
  Temporaries all;
  train_step(model, engine);
  const auto during = [&](const std::string& what, const auto& call) {
    engine.reset_peaks();
    call();
    const Ledger ledger = engine.ledger();
    for (const Owner owner : {Owner::gathered, Owner::reduction, Owner::update, Owner::snapshot})
      for (const Tier tier : {Tier::device, Tier::host, Tier::disk})
        if (const std::int64_t bytes = ledger.on(tier, owner).peak; bytes > 0)
          all.bytes[what + ": " + std::string(name(owner)) + " on " + std::string(name(tier))] = bytes;
  };
  const auto beside = [&](const std::string& what, const auto& call) {
    during(what, [&] {
      const TensorsHere tensors;
      call();
      all.bytes[what + ": tensors"] = tensors.most();
    });
  };
  during("backward", [&] {
    for (int micro = 0; micro < engine.plan().accumulate(); ++micro) engine.backward(model.loss(engine.micro_batch()));
  });
  beside("step", [&] { engine.step(); });
  beside("save", [&] { engine.save(folder); });
  beside("load", [&] { engine.load(folder); });
  return all;
}

struct Buffers {
  const char* name;
  Plan plan;
  Optimizer optimizer = AdamW{};
  int shard = 0;
  int layers = 4;  // of disks so many that buffers are used whole
};

Plan on_disk(Plan plan, std::initializer_list<State> states) {
  for (const State state : states) plan = plan.offload(state, Tier::disk);
  return plan;
}

const Buffers kBuffers[] = {
    {"Ddp", Plan::ddp()},
    {"ZeroOne", Plan::zero1()},
    {"ZeroTwo", Plan::zero2()},
    {"ZeroThree", Plan::zero3()},
    {"HybridOfTwo", Plan::hybrid(), AdamW{}, 2},
    {"Accumulating", Plan::zero3().accumulate(2)},
    {"InBf16", Plan::zero3().bf16()},
    {"InFp8", Plan::zero3().precision(Precision::fp8)},
    {"GatheredInFp8", Plan::zero3().bf16().gather_in(Wire::fp8)},
    {"ReducedInBf16", Plan::zero2().reduce_in(Wire::bf16)},
    {"OptimizerOnDisk", on_disk(Plan::zero2(), {State::optimizer})},
    {"AllOnDisk", on_disk(Plan::zero3(), {State::parameter, State::gradient, State::optimizer}), AdamW{}, 0, 16},
    {"AllOnDiskInBf16", on_disk(Plan::zero3().bf16(), {State::parameter, State::gradient, State::optimizer}), AdamW{},
     0, 32},
    {"Lamb", Plan::zero1(), Lamb{}},
    {"Adafactor", Plan::zero3(), Adafactor{}},
    {"Muon", Plan::zero2(), Muon{}}};

class BuffersOf : public testing::TestWithParam<Buffers> {};

// On rank 0 of 4, of a model of so many layers.
Temporaries temporaries_of(const Buffers& buffers, int layers) {
  const Folder folder;
  Options options{.seed = 3};
  options.disk = {.directories = {folder.path()}, .block = 16384, .depth = 4};
  use_reporting_allocator();
  Temporaries found;
  const Job job{
      .plan = buffers.plan, .ranks = 4, .optimizer = buffers.optimizer, .options = options, .shard = buffers.shard};
  const Course<Stack> course{.make = [=] { return std::make_shared<Stack>(64, layers); }};
  on_ranks<Stack>(job, course, [&](Stack& model, Engine& engine, int rank) {
    Temporaries all = temporaries(model, engine, folder.path() + "/saved");
    if (rank == 0) found = std::move(all);
  });
  return found;
}

// C_B of ZeRO-R: twice the layers, the same temporary buffers to the byte.
TEST_P(BuffersOf, AModelTwiceAsDeepAreTheSame) {
  const int layers = GetParam().layers;
  const Temporaries shallow = temporaries_of(GetParam(), layers), deep = temporaries_of(GetParam(), 2 * layers);
  EXPECT_EQ(shallow.bytes, deep.bytes);
}

// But for those that are told to: here all parameters stay gathered.
TEST(Bytes, BuffersGrowWhereTheyAreToldTo) {
  const Buffers all{"", Plan::zero3().resident_budget(std::int64_t{1} << 40)};
  EXPECT_EQ(temporaries_of(all, 8).bytes["backward: gathered on device"],
            2 * temporaries_of(all, 4).bytes["backward: gathered on device"]);
}

// What they are bound to is the largest unit: one that is twice as large doubles what holds units, however many others
// there are.
TEST(Bytes, BuffersAreThoseOfTheLargestUnit) {
  std::vector<std::int64_t> reduction;
  for (const std::int64_t width : {64, 128}) {
    const Course<Stack> course{.make = [=] { return std::make_shared<Stack>(width, 4); }};
    on_ranks<Stack>({.plan = Plan::zero2(), .ranks = 2}, course, [&](Stack& model, Engine& engine, int rank) {
      for (int step = 0; step < 2; ++step) train_step(model, engine);
      EXPECT_EQ(engine.ledger()[Owner::reduction].peak, engine.estimate().held[Owner::reduction].peak);
      EXPECT_EQ(engine.ledger()[Owner::reduction].peak, largest_unit(engine.layout()));
      if (rank == 0) reduction.push_back(engine.ledger()[Owner::reduction].peak);
    });
  }
  EXPECT_GT(reduction[1], 3 * reduction[0]);
}

INSTANTIATE_TEST_SUITE_P(All, BuffersOf, testing::ValuesIn(kBuffers), [](const auto& each) { return each.param.name; });

TEST(Bytes, NothingGrowsFromStepToStep) {
  under_every_plan({.ranks = 2}, [](const Job& job) {
    on_ranks<Lm>(job, {}, [](Lm& model, Engine& engine, int) {
      for (int step = 0; step < 2; ++step) train_step(model, engine);
      engine.reset_peaks();
      train_step(model, engine);
      const Ledger before = engine.ledger();
      for (int step = 0; step < 40; ++step) train_step(model, engine);
      EXPECT_EQ(engine.ledger().held(), before.held());
      EXPECT_EQ(engine.ledger().peak_held, before.peak_held);
    });
  });
}

// The paper's table for Adam in fp32: 16 bytes a parameter, 4 + 4 + 8, each divided by N or not.
TEST(Bytes, OfTwelveMillionParametersOnFourRanksAreThePapers) {
  const Course<Stack> course{.make = [] { return std::make_shared<Stack>(2048, 3); }};
  const std::map<std::string, double> megabytes{{"ddp", 201.4}, {"zero1", 125.9}, {"zero2", 88.1}, {"zero3", 50.4}};
  for (const Plan& plan : all_plans()) {
    SCOPED_TRACE(plan.label());
    on_ranks<Stack>({.plan = plan, .ranks = 4}, course, [&](Stack& model, Engine& engine, int) {
      EXPECT_EQ(engine.layout().numel(), 12'589'056);
      train_step(model, engine);
      expect_held(engine);
      const Ledger ledger = engine.ledger();
      const double measured = static_cast<double>(ledger[Owner::parameter].bytes + ledger[Owner::gradient].bytes +
                                                  ledger[Owner::optimizer].bytes) /
                              1e6;
      EXPECT_NEAR(measured, megabytes.at(plan.label()), 1e-3 * megabytes.at(plan.label()));
    });
  }
}

}  // namespace zero::test::bytes_test
