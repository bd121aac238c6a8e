#include "planner/shape.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <ranges>

#include "base/text.h"
#include "expanded.h"
#include "golden_table.h"
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
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(same(found[i], expected[i]))
        << found[i].name << " of " << found[i].numel << " elements, where "
        << "tests/tables/llama_parameters.txt has " << expected[i].name << " of " << expected[i].numel;
}

// Those of a model with so many layers. A layer's index orders them, behind the table and before the last norm.
std::vector<ParameterSpec> listed(const char* model, int layers) {
  std::vector<std::pair<int, ParameterSpec>> all;
  for (const golden::Row& row : golden::table("llama_parameters")) {
    std::string unit = row.text("unit");
    const bool of_layers = unit.ends_with('*'), first = unit == "model.embed_tokens";
    if (row.text(model) == "-") continue;
    for (int i = 0; i < (of_layers ? layers : 1); ++i) {
      if (of_layers) unit = "model.layers." + std::to_string(i);
      all.emplace_back(of_layers || first ? i - first : layers,
                       ParameterSpec{.name = unit + "." + row.text("parameter"),
                                     .numel = row.count(model),
                                     .dtype = Dtype::bf16,
                                     .unit = unit,
                                     .read_in_backward = !first});
    }
  }
  std::ranges::stable_sort(all, {}, &std::pair<int, ParameterSpec>::first);
  return {std::views::values(all).begin(), std::views::values(all).end()};
}

models::LlamaConfig tied_and_grouped() {
  models::LlamaConfig config = models::llama_preset("micro");
  config.tie_word_embeddings = true;
  config.num_key_value_heads = 2;
  config.num_hidden_layers = 2;
  return config;
}

TEST(PlannerShape, IsWhatTheEngineFinds) {
  const Shape shape = shape_of(models::llama_preset("micro"));
  expect_specs(specs(expanded(shape), Plan::zero3().bf16()), listed("micro", 4));
  EXPECT_EQ(shape.parameters, 857'216);
  EXPECT_TRUE(shape.assumed.empty());
  expect_specs(specs(expanded(shape_of(tied_and_grouped())), Plan::zero3().bf16()), listed("tied, grouped", 2));
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

std::string quantity(const std::string& of, const std::string& text) {
  try {
    if (of == "bandwidth") return zero::shortest(bandwidth_of(text));
    return std::to_string(of == "parameters" ? parameters_of(text) : bytes_of(text, of == "bytes" ? 1 : 0));
  } catch (const zero::ConfigError& error) {
    return "refused: " + std::string(error.what());
  }
}

TEST(PlannerQuantity, IsReadInAllSpellings) {
  for (const golden::Row& row : golden::table("quantities"))
    for (const std::string text : nlohmann::json::parse("[" + row.text("texts") + "]"))
      row.expect("is", quantity(row.text("of"), text));
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
