// What is held and what is sent, against the estimate: to the byte.
#include <torch/torch.h>

#include <algorithm>

#include "lm.h"

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

// C_B of ZeRO-R: twice the model, the same buffers.
TEST(Bytes, CommunicationBuffersDoNotGrowWithTheModel) {
  for (const Plan& plan : {Plan::zero2(), Plan::zero3()}) {
    std::vector<Ledger> ledgers;
    for (const int layers : {4, 8}) {
      const Course<Stack> course{.make = [=] { return std::make_shared<Stack>(64, layers); }};
      on_ranks<Stack>({.plan = plan, .ranks = 2}, course, [&](Stack& model, Engine& engine, int rank) {
        train_step(model, engine);
        engine.reset_peaks();
        train_step(model, engine);
        if (rank == 0) ledgers.push_back(engine.ledger());
      });
    }
    EXPECT_GT(ledgers[0][Owner::reduction].peak, 0);
    EXPECT_EQ(ledgers[0][Owner::reduction].peak, ledgers[1][Owner::reduction].peak);
    EXPECT_EQ(ledgers[0][Owner::gathered].peak, ledgers[1][Owner::gathered].peak);
  }
}

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
