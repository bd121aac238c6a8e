// The dtype in which gradients travel, by choice: bytes, bits, and what is rounded.
#include <torch/torch.h>

#include "lm.h"

namespace zero::test {
namespace {

TEST(ReduceIn, SendsTheBytesEstimated) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16})
      for (const int accumulate : {1, 2})
        for (const Plan& plan : all_plans()) {
          const Job job{plan.precision(precision).accumulate(accumulate).reduce_in(dtype), 3};
          SCOPED_TRACE(describe(job) + std::string(name(dtype)));
          on_ranks<Lm>(job, {}, [](Lm& model, Engine& engine, int) {
            for (int step = 0; step < 2; ++step) train_step(model, engine);
            engine.reset_traffic();
            engine.reset_peaks();
            train_step(model, engine);
            EXPECT_TRUE(engine.traffic() == engine.estimate().wire);
            EXPECT_LE(engine.ledger()[Owner::reduction].peak, engine.estimate().reduction);
          });
        }
}

std::int64_t reduced(const Plan& plan) {
  std::int64_t bytes = 0;
  on_ranks<Lm>({plan, 2}, {}, [&](Lm&, Engine& engine, int rank) {
    if (rank == 0) bytes = engine.estimate().wire[Collective::reduce_scatter].bytes;
  });
  return bytes;
}

TEST(ReduceIn, HalvesWhatTravels) {
  for (const Plan& plan : all_plans()) EXPECT_EQ(2 * reduced(plan.reduce_in(Dtype::bf16)), reduced(plan));
  EXPECT_EQ(reduced(Plan::zero3().bf16().reduce_in(Dtype::f32)), 2 * reduced(Plan::zero3().bf16()));
}

// What is in bf16 already is not changed by travelling in fp32, and every plan rounds what one micro-batch gave.
TEST(ReduceIn, HasTheSameBitsUnderEveryPlan) {
  const auto run = [](const Plan& plan) { return train<Lm>({plan, 4}, lm_with_dropout(0.1)); };
  EXPECT_EQ(difference(run(Plan::zero3().bf16()), run(Plan::zero3().bf16().reduce_in(Dtype::f32))), "");
  const Outcome ddp = run(Plan::ddp().reduce_in(Dtype::bf16));
  for (const Plan& plan : all_plans()) EXPECT_EQ(difference(ddp, run(plan.reduce_in(Dtype::bf16))), "") << plan.label();
  EXPECT_NE(difference(ddp, run(Plan::ddp())), "");
  EXPECT_EQ(difference(ddp, run(Plan::ddp()), 0.01), "");
}

TEST(ReduceIn, RefusesWhatIsNoFloatingPointFormatOfTheWire) {
  EXPECT_THROW(Plan::zero3().reduce_in(Dtype::i32).validate(2), ConfigError);
  EXPECT_THROW(Plan::zero3().reduce_in(Dtype::f64).validate(2), ConfigError);
  EXPECT_THROW(Plan::zero3().reproducible(true).reduce_in(Dtype::bf16).validate(2), ConfigError);
}

}  // namespace
}  // namespace zero::test
