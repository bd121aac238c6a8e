// What is allocated must be what LibTorch allocates: tests/ranks/activations_test.cpp. Here: the formulas it follows.
#include "planner/activations.h"

#include <gtest/gtest.h>

#include "planner/price.h"
#include "planner/processor.h"
#include "unit/formulas.h"

namespace planner::planner_activations_test {

using zero::Precision;

MicroBatch work(std::int64_t layers, std::int64_t batch, std::int64_t seq, Precision precision = Precision::bf16) {
  models::LlamaConfig config = models::llama_preset("1b");
  config.num_hidden_layers = layers;
  return {config, batch, seq, precision};
}

class Balance final : public StepListener {
 public:
  void hold(const Block& made) override { sum += made.bytes; }
  void drop(const Block& block) override {
    sum -= block.bytes;
    EXPECT_GE(sum, 0);
  }
  std::int64_t sum = 0;
};

TEST(LlamaStep, GivesBackWhatItTakes) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    for (const char* model : {"micro", "125m", "1b"})
      for (const std::string_view recompute : models::recomputes())
        for (const std::int64_t pieces : {1, 2, 10}) {
          models::LlamaConfig config = models::llama_preset(model);
          config.activations = {models::recompute_named(recompute), pieces};
          Balance balance;
          walk({config, 3, 77, precision}, balance);
          EXPECT_EQ(balance.sum, 0) << model << ", " << recompute << ", " << pieces;
        }
}

// Each layer more holds as much as any other; the published formula counts less for a layer of GPT, which normalises in
// 16 bits, and more where attention keeps its scores.
TEST(Activations, GrowByALayerAsPublishedFormulasSay) {
  const auto bytes = [](std::int64_t layers) { return activations(work(layers, 2, 512)).bytes; };
  const std::int64_t layer = bytes(5) - bytes(4);
  EXPECT_EQ(bytes(9) - bytes(8), layer);
  const double sbh = 2.0 * 512 * 2048;
  EXPECT_GT(static_cast<double>(layer), 34 * sbh);
  EXPECT_LT(static_cast<double>(layer), 60 * sbh);
}

TEST(Activations, GrowWithTheTokens) {
  const auto bytes = [](std::int64_t batch, std::int64_t seq) {
    return static_cast<double>(activations(work(4, batch, seq, Precision::fp32)).bytes);
  };
  EXPECT_NEAR(bytes(4, 1024) / bytes(2, 1024), 2, 0.01);
  EXPECT_NEAR(bytes(2, 1024) / bytes(2, 512), 2, 0.02);
}

// The head's gradient, and what the layers' backward needs, are there when the sum of its slice is made.
TEST(Activations, HoldTheHeadsGradientAsItsSumIsMade) {
  const MicroBatch one = work(22, 1, 32);
  const std::int64_t head = one.config.vocab_size * one.config.hidden_size * 2;
  EXPECT_GT(activations(one).in_backward, head + activations(one).layers * one.seq * one.config.intermediate_size * 2);
}

// The gradient of the largest weight, at the moment that is the largest without it too.
TEST(Activations, HaveAWideResultBesideAProductWhereTheProcessorDoes) {
  MicroBatch one = work(2, 1, 32);
  const std::int64_t head = one.config.vocab_size * one.config.hidden_size;
  const std::int64_t without = activations(one).bytes;
  one.scratch = ProductScratch::wide_results;
  EXPECT_NEAR(static_cast<double>(activations(one).bytes - without), static_cast<double>(head * 4), 1.5e6);
  one.precision = Precision::fp16;
  EXPECT_EQ(activations(one).bytes, without);
}

TEST(Processors, KeepWideResultsWithAvx512AndWithoutItsBf16) {
  EXPECT_EQ(product_scratch({.avx512 = true}), ProductScratch::wide_results);
  EXPECT_EQ(product_scratch({.avx512 = true, .avx512_bf16 = true}), ProductScratch::blocks);
  EXPECT_EQ(product_scratch({}), ProductScratch::none);
  EXPECT_EQ(product_scratch({.avx512 = true, .avx512_bf16 = true, .limit = "AVX512_CORE_VNNI"}),
            ProductScratch::wide_results);
  EXPECT_EQ(product_scratch({.avx512 = true, .limit = "AVX512_CORE_AMX"}), ProductScratch::wide_results);
  for (const char* limit : {"SSE41", "AVX", "AVX2", "AVX2_VNNI"})
    EXPECT_EQ(product_scratch({.avx512 = true, .avx512_bf16 = true, .limit = limit}), ProductScratch::none) << limit;
}

// A large vocabulary's logits are largest when backward begins; a deep model's layers when it has begun.
TEST(Activations, NameTheMoment) {
  models::LlamaConfig config = models::llama_preset("micro");
  config.vocab_size = 50000;
  EXPECT_EQ(activations({config, 4, 128, Precision::fp32}).moment, "start of backward");
  config.vocab_size = 16;
  const Activations deep = activations({config, 4, 128, Precision::fp32});
  EXPECT_EQ(deep.moment, "backward");
  EXPECT_EQ(deep.in_backward, deep.bytes);
  EXPECT_EQ(deep.layers, config.num_hidden_layers);
  EXPECT_LT(deep.in_layers, deep.in_backward);
  EXPECT_GT(deep.in_layers, deep.in_backward / 2);
  EXPECT_GT(deep.in_embedding, 0);
  EXPECT_LT(deep.in_embedding, deep.in_layers);
}

// Slices of an embedding, two layers, a norm and a head.
TEST(Peak, AddsASliceOnlyToWhatLivesWhileItsUnitIsReduced) {
  zero::Estimate estimate;
  for (const zero::Owner state : {zero::Owner::parameter, zero::Owner::gradient, zero::Owner::optimizer})
    estimate.held.add(state, 100);
  estimate.held.add(zero::Owner::reduction, 130);
  estimate.slices = {100, 50, 50, 1, 20};
  const auto peak = [&](std::int64_t in_backward, std::int64_t in_layers, std::int64_t in_embedding) {
    return peak_of(estimate, {1000, "start of backward", in_backward, in_layers, in_embedding, 2});
  };
  EXPECT_EQ(peak(980, 950, 900).bytes, 300 + 30 + 1000);
  EXPECT_EQ(peak(980, 950, 900).moment, "start of backward");
  EXPECT_EQ(peak(990, 900, 900).bytes, 300 + 30 + 990 + 20);
  EXPECT_EQ(peak(990, 900, 900).moment, "backward");
  EXPECT_EQ(peak(990, 970, 900).bytes, 300 + 30 + 970 + 50);
  EXPECT_EQ(peak(990, 970, 925).bytes, 300 + 30 + 925 + 100);
  estimate.slices = {100, 100};  // nothing but layers
  EXPECT_EQ(peak(1000, 890, 890).bytes, 300 + 30 + 1000);
}

}  // namespace planner::planner_activations_test
