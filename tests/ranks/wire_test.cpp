// FP8 on the wire: bytes, bits at every world size, and scopes that see the shards' own values.
#include <torch/torch.h>

#include "lm.h"

namespace zero::test::wire_test {

Plan in_fp8(Precision precision) {
  return Plan::zero3().precision(precision).gather_in(Wire::fp8);
}

// E4M3 and a byte for each 32: 1.03 bytes a parameter.
TEST(Float8Wire, IsHalfOfBf16) {
  const auto gathered = [](const Plan& plan) {
    const std::vector<ParameterSpec> specs{{.name = "w", .numel = 1 << 16, .dtype = Dtype::bf16, .unit = "u"}};
    return estimate(plan, Layout(specs, 2, 32), Sgd{}).wire[Collective::all_gather].bytes;
  };
  const std::int64_t blocks = (1 << 15) / 32;
  EXPECT_EQ(gathered(Plan::zero3().bf16()) - gathered(in_fp8(Precision::bf16)), (1 << 15) - blocks);
}

TEST(Float8Wire, HasTheSameBitsAtEveryWorldSize) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp8}) {
    const auto run = [&](int ranks) {
      const Plan plan = in_fp8(precision).accumulate(4 / ranks).reproducible(true);
      return train<Lm>({plan, ranks, AdamW{.lr = 2e-3, .eps = 1e-4}, {.seed = 3}, 6}, lm_with_dropout(0.1));
    };
    EXPECT_EQ(difference(run(2), run(4)), "");
  }
}

TEST(Float8Wire, TrainsNearlyAsWell) {
  const auto last = [](const Plan& plan) {
    return train<Lm>({plan, 2, AdamW{.lr = 2e-3, .eps = 1e-4}, {}, 30}).losses.back();
  };
  const double native = last(Plan::zero3()), fp8 = last(in_fp8(Precision::fp32));
  EXPECT_NE(native, fp8);
  EXPECT_NEAR(native, fp8, 0.05 * native);
}

// What is gathered for a scope, written there or given back is not what travels in FP8.
TEST(Float8Wire, ScopesSeeTheShardsOwnValues) {
  on_ranks<Lm>({in_fp8(Precision::fp32), 2, Sgd{.lr = 0}}, {}, [](Lm& model, Engine& engine, int) {
    const at::Tensor& weight = model.blocks[0]->as<Block>()->up->weight;
    const at::Tensor before = engine.main_parameter(weight);
    train_step(model, engine);
    {
      const auto scope = gather({weight});
      EXPECT_TRUE(at::equal(weight, before));
      at::NoGradGuard no_grad;
      weight.add_(1);
    }
    EXPECT_TRUE(at::equal(engine.main_parameter(weight), before + 1));
    train_step(model, engine);
    EXPECT_TRUE(at::equal(engine.main_parameter(weight), before + 1));
    engine.release();
    EXPECT_TRUE(at::equal(weight, before + 1));
  });
}

TEST(Float8Wire, IsRefusedWhereNothingIsGathered) {
  EXPECT_THROW(Plan::zero2().gather_in(Wire::fp8).validate(2), ConfigError);
  EXPECT_THROW(Plan::zero3().gather_in(Wire::bf16).validate(2), ConfigError);
}

}  // namespace zero::test::wire_test
