#include "planner/shape.h"

#include <gtest/gtest.h>

#include <numeric>

#include "expanded.h"
#include "planner/price.h"
#include "planner/quantity.h"
#include "zero/error.h"

namespace planner::planner_shape_test {

using zero::Dtype;
using zero::ParameterSpec;
using zero::Plan;

bool same(const ParameterSpec& a, const ParameterSpec& b) {
  return a.name == b.name && a.numel == b.numel && a.dtype == b.dtype && a.trainable == b.trainable &&
         a.unit == b.unit && a.read_in_backward == b.read_in_backward;
}

void expect_specs(const std::vector<ParameterSpec>& found, const std::vector<ParameterSpec>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(same(found[i], expected[i])) << found[i].name;
}

// One layer's, in the order in which its modules are registered.
void append_layer(std::vector<ParameterSpec>& specs, int index, std::int64_t hidden, std::int64_t inner,
                  std::int64_t key_value) {
  const std::string unit = "model.layers." + std::to_string(index);
  const auto add = [&](const char* name, std::int64_t numel) {
    specs.push_back({.name = unit + name, .numel = numel, .dtype = Dtype::bf16, .unit = unit});
  };
  add(".input_layernorm.weight", hidden);
  add(".self_attn.q_proj.weight", hidden * hidden);
  add(".self_attn.k_proj.weight", key_value * hidden);
  add(".self_attn.v_proj.weight", key_value * hidden);
  add(".self_attn.o_proj.weight", hidden * hidden);
  add(".post_attention_layernorm.weight", hidden);
  add(".mlp.gate_proj.weight", inner * hidden);
  add(".mlp.up_proj.weight", inner * hidden);
  add(".mlp.down_proj.weight", hidden * inner);
}

ParameterSpec table(std::int64_t vocab, std::int64_t hidden) {
  return {.name = "model.embed_tokens.weight",
          .numel = vocab * hidden,
          .dtype = Dtype::bf16,
          .unit = "model.embed_tokens",
          .read_in_backward = false};
}

ParameterSpec last_norm(std::int64_t hidden) {
  return {.name = "model.norm.weight", .numel = hidden, .dtype = Dtype::bf16, .unit = "model.norm"};
}

TEST(PlannerShape, MicroIsWhatTheEngineFinds) {
  std::vector<ParameterSpec> expected{table(256, 128)};
  for (int i = 0; i < 4; ++i) append_layer(expected, i, 128, 344, 128);
  expected.push_back(last_norm(128));
  expected.push_back({.name = "lm_head.weight", .numel = 256 * 128, .dtype = Dtype::bf16, .unit = "lm_head"});
  const Shape shape = shape_of(models::llama_preset("micro"));
  expect_specs(specs(expanded(shape), Plan::zero3().bf16()), expected);
  EXPECT_EQ(shape.parameters, 857'216);
  EXPECT_TRUE(shape.assumed.empty());
}

models::LlamaConfig tied_and_grouped() {
  models::LlamaConfig config = models::llama_preset("micro");
  config.tie_word_embeddings = true;
  config.num_key_value_heads = 2;
  config.num_hidden_layers = 2;
  return config;
}

TEST(PlannerShape, ATiedTableIsThereOnceAndGroupedHeadsAreNarrower) {
  std::vector<ParameterSpec> expected{table(256, 128)};
  for (int i = 0; i < 2; ++i) append_layer(expected, i, 128, 344, 64);
  expected.push_back(last_norm(128));
  expect_specs(specs(expanded(shape_of(tied_and_grouped())), Plan::zero3().bf16()), expected);
}

TEST(PlannerShape, HeadsMayBeWiderThanTheHiddenSizeSays) {
  models::LlamaConfig config = models::llama_preset("micro");
  config.head_dim = 64;
  const Shape shape = shape_of(config);
  EXPECT_EQ(shape.infos[2].shape, (std::vector<std::int64_t>{4 * 64, 128}));
  EXPECT_EQ(shape.infos[5].shape, (std::vector<std::int64_t>{128, 4 * 64}));
}

TEST(PlannerShape, CountsAllPresetsExactly) {
  for (const std::string_view preset : models::llama_presets()) {
    const models::LlamaConfig config = models::llama_preset(preset);
    const Shape shape = shape_of(config);
    EXPECT_EQ(shape.parameters, models::parameter_count(config)) << preset;
    EXPECT_EQ(zero::Layout(specs(expanded(shape), Plan::ddp()), 8).numel(), shape.parameters) << preset;
  }
}

TEST(PlannerShape, ParametersAreStoredAsThePrecisionSays) {
  const Shape shape = shape_of(models::llama_preset("micro"));
  EXPECT_EQ(specs(shape, Plan::ddp()).front().dtype, Dtype::f32);
  EXPECT_EQ(specs(shape, Plan::ddp().precision(zero::Precision::fp16)).front().dtype, Dtype::f16);
}

TEST(PlannerShape, AnUntiedModelIsUsedInOrderAndBackWithoutItsTable) {
  const models::LlamaConfig config = models::llama_preset("micro");
  const std::vector<int> expected{0, 1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1};
  const Shape shape = shape_of(config);
  const zero::Layout layout(specs(expanded(shape), Plan::zero3()), 4), once(specs(shape, Plan::zero3()), 4);
  EXPECT_EQ(order_of_use(config, layout).touches, expected);
  EXPECT_EQ(order_of_use(config, once, shape.repeats).touches, expected);
  EXPECT_EQ(zero::Trace::sequential(layout).touches, expected);
}

TEST(PlannerShape, ATiedTableIsUsedAgainBetweenForwardAndBackward) {
  const models::LlamaConfig config = tied_and_grouped();
  const std::vector<int> expected{0, 1, 2, 3, 0, 3, 2, 1};
  const Shape shape = shape_of(config);
  const zero::Layout layout(specs(expanded(shape), Plan::zero3()), 4), once(specs(shape, Plan::zero3()), 4);
  EXPECT_EQ(order_of_use(config, layout).touches, expected);
  EXPECT_EQ(order_of_use(config, once, shape.repeats).touches, expected);
}

TEST(PlannerShape, ACountIsSpreadOverEqualUnitsExactly) {
  for (const std::int64_t parameters : {1LL, 127LL, 1'000'003LL, 350'000'000LL, 7'500'000'000LL}) {
    const Shape shape = shape_of(parameters);
    const zero::Layout layout(specs(expanded(shape), Plan::ddp()), 1);
    EXPECT_EQ(layout.numel(), parameters);
    EXPECT_EQ(shape.parameters, parameters);
    EXPECT_FALSE(shape.assumed.empty());
    for (std::size_t i = 0; i + 1 < layout.units().size(); ++i)
      EXPECT_EQ(layout.units()[i].numel(), layout.units()[0].numel());
  }
}

TEST(PlannerShape, ATrillionHasFewUnitsAndUsualProportions) {
  const Shape shape = shape_of(1'000'000'000'000);
  EXPECT_LE(expanded(shape).infos.size(), 400);
  EXPECT_LE(zero::Layout(specs(expanded(shape), Plan::zero3()), 10'000).units().size(), 200);
  const models::LlamaConfig& config = shape.config;
  EXPECT_NO_THROW(models::validate(config, "assumed"));
  EXPECT_NEAR(static_cast<double>(config.hidden_size) / static_cast<double>(config.num_hidden_layers), 128, 2);
  EXPECT_NEAR(static_cast<double>(models::parameter_count(config)) / 1e12, 1, 0.02);
}

TEST(PlannerShape, RefusesAModelWithoutParameters) {
  EXPECT_THROW(shape_of(std::int64_t{0}), zero::ConfigError);
}

TEST(PlannerQuantity, ReadsParametersInAllSpellings) {
  for (const char* text : {"7.5e9", "7.5B", "7.5b", "7500M", "7500000000", "7.5 G", "0.0075T"})
    EXPECT_EQ(parameters_of(text), 7'500'000'000) << text;
  EXPECT_EQ(parameters_of("1T"), 1'000'000'000'000);
  EXPECT_EQ(parameters_of("350M"), 350'000'000);
  EXPECT_EQ(parameters_of("12589056"), 12'589'056);
}

TEST(PlannerQuantity, ReadsBytesByThousandsAndByPowersOfTwo) {
  EXPECT_EQ(bytes_of("80GB"), 80'000'000'000);
  EXPECT_EQ(bytes_of("80G"), 80'000'000'000);
  EXPECT_EQ(bytes_of("80e9"), 80'000'000'000);
  EXPECT_EQ(bytes_of("80GiB"), 80LL << 30);
  EXPECT_EQ(bytes_of("1.5 MiB"), 3 << 19);
  EXPECT_EQ(bytes_of("500 mb"), 500'000'000);
}

TEST(PlannerQuantity, RefusesWhatIsNoSize) {
  for (const char* text : {"", "B", "7.5X", "-1B", "0", "nan", "inf", "1e30", "7.5B B"})
    EXPECT_THROW(parameters_of(text), zero::ConfigError) << text;
  for (const char* text :
       {"", " ", "80GX", "-80GB", "0GB", "80 Gb it", "0x80GB", "080GB", "infGB", "1e400GB", "2e18", "0.4B"})
    EXPECT_THROW(bytes_of(text), zero::ConfigError) << text;
}

TEST(PlannerQuantity, CountsIntegersExactly) {
  EXPECT_EQ(parameters_of("999999999999999999"), 999'999'999'999'999'999);
  EXPECT_EQ(bytes_of("9007199254740993"), 9'007'199'254'740'993);
  EXPECT_EQ(bytes_of("0", 0), 0);
  EXPECT_THROW(bytes_of("-1", 0), zero::ConfigError);
  EXPECT_THROW(bytes_of("18446744073709551616", 0), zero::ConfigError);
  EXPECT_THROW(bytes_of("9223372036854775807TiB", 0), zero::ConfigError);
}

TEST(PlannerQuantity, MissesAUnitWhereBytesAreFew) {
  try {
    bytes_of("80");
    FAIL();
  } catch (const zero::ConfigError& error) {
    EXPECT_STREQ(error.what(), "'80' has no unit, so it is 80 bytes (write 80GB, or 80B if bytes are meant)");
  }
  EXPECT_EQ(bytes_of("80B"), 80);
  EXPECT_EQ(bytes_of("1000000"), 1'000'000);
}

TEST(PlannerQuantity, ReadsBandwidthsInBitsAndBytes) {
  for (const char* text : {"100Gbit", "100 Gbit/s", "100gbit", "0.1Tbit", "100000Mbit/s", "12.5GB/s", "12500 MB/s"})
    EXPECT_EQ(bandwidth_of(text), 12.5e9) << text;
}

// Gb/s may be meant as either; what it means is asked for.
TEST(PlannerQuantity, RefusesBandwidthsThatMayBeMeantAsEither) {
  for (const char* text :
       {"", "100", "100Gb/s", "100gb/s", "100GB", "100Gbps", "100 Gbit/min", "-1Gbit", "0Gbit", "nan"})
    try {
      bandwidth_of(text);
      ADD_FAILURE() << text;
    } catch (const zero::ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("write 100Gbit"), std::string::npos) << error.what();
    }
}

TEST(PlannerQuantity, SaysBytesInTheUnitThatFits) {
  EXPECT_EQ(in_units(80'000'000'000), "80.0 GB");
  EXPECT_EQ(in_units(1'234'000'000'000), "1234 GB");
  EXPECT_EQ(in_units(999'900'000), "1.00 GB");
  EXPECT_EQ(in_units(3'214'000), "3.21 MB");
  EXPECT_EQ(in_units(-56'700), "-56.7 kB");
  EXPECT_EQ(in_units(640), "640 bytes");
  EXPECT_EQ(in_units(1), "1 byte");
}

TEST(PlannerQuantity, RoundsToSignificantDigits) {
  EXPECT_EQ(rounded(1.8756, 3), 1.88);
  EXPECT_EQ(rounded(31.406, 3), 31.4);
  EXPECT_EQ(rounded(120.04, 3), 120);
  EXPECT_EQ(rounded(4187.5, 3), 4190);
  EXPECT_EQ(rounded(0, 3), 0);
}

}  // namespace planner::planner_shape_test
