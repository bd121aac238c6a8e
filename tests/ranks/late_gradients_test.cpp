// Gradients, and what the optimizer keeps, lie in stores that are never addressable: the same bits as in memory,
// through buffers of constant size, and failures that are told of.
#include <torch/torch.h>

#include <array>

#include "late_stores.h"
#include "zero/error.h"

namespace zero::test::late_gradients_test {

// Two losses that go backward one by one: more than planned, and in 16 bits wider than planned.
TEST(LateGradients, TakeMoreBackwardsThanPlanned) {
  for (const int ranks : {1, 2})
    for (const Precision precision : {Precision::fp32, Precision::bf16})
      for (const Plan& plan : {Plan::zero1(), Plan::zero2(), Plan::zero3()}) {
        SCOPED_TRACE(plan.label() + std::string(name(precision)) + std::to_string(ranks));
        const auto run = [&](const Course<Lm>& course) {
          return train_by(Job{plan.precision(precision), ranks}, course,
                          [](Lm& model, Engine& engine, Outcome& outcome, int) {
                            for (int step = 0; step < 2; ++step) {
                              for (int loss = 0; loss < 3; ++loss)
                                engine.backward(model.loss(engine.micro_batch() + 10 * loss));
                              outcome.record(engine.step());
                            }
                          });
        };
        const auto watch = std::make_shared<LateWatch>();
        const Course<Lm> late = in_late_stores<Lm>(watch, {}, {State::optimizer, State::gradient});
        EXPECT_EQ(difference(run({}), run(late)), "");
        expect_no_fault(watch);
      }
}

TEST(LateGradients, OfProductsInFloat8HaveTheBitsOfMemory) {
  for (const Plan& plan : {Plan::zero1(), Plan::zero2(), Plan::zero3()}) {
    const Job job{plan.precision(Precision::fp8).accumulate(2), 2};
    const Course<Wide> course{.make = [] { return std::make_shared<Wide>(48); }};
    const auto watch = std::make_shared<LateWatch>();
    const Course<Wide> late = in_late_stores<Wide>(watch, course, {State::optimizer, State::gradient});
    EXPECT_EQ(difference(train<Wide>(job, course), train<Wide>(job, late)), "") << plan.label();
    expect_no_fault(watch);
  }
}

TEST(LateGradients, ThatFailOnOneRankEndTheOthersToo) {
  for (const int operation : {0, 5, 40}) {
    std::array<std::string, 2> told;
    run_ranks(2, [&](const World& world) {
      const auto watch = std::make_shared<LateWatch>();
      const Late late(watch, {State::optimizer, State::gradient});
      Lm model;
      Engine engine(model, world, Plan::zero2().bf16(), AdamW{});
      train_step(model, engine);
      if (world.rank() == 1) watch->fails_at = operation;
      told[static_cast<std::size_t>(world.rank())] = thrown_by([&] {
        for (int step = 0; step < 3; ++step) train_step(model, engine);
      });
      watch->fails_at = -1;
    });
    EXPECT_TRUE(says(told[1], {"rank 1: the ", " of unit '", "the late store failed to "}));
    EXPECT_FALSE(told[0].empty());
  }
}

TEST(LateGradients, AreRefusedWhereRanksGatherThem) {
  run_ranks(2, [](const World& world) {
    const Late late(std::make_shared<LateWatch>(), {State::gradient});
    Lm model;
    EXPECT_TRUE(says(thrown_by([&] { Engine(model, world, Plan::ddp(), AdamW{}); }),
                     {"gradients on tier disk", "cannot be gathered", "zero2"}));
    const at::Tensor loss = model.loss(0);
    EXPECT_TRUE(loss.requires_grad()) << "the model is the program's again";
  });
}

}  // namespace zero::test::late_gradients_test
