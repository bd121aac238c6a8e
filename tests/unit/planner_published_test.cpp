// Rows that papers and DeepSpeed's documentation print. Table 1 of the ZeRO paper is in planner_price_test.cpp.
#include <gtest/gtest.h>

#include <array>
#include <tuple>

#include "planner/fit.h"
#include "planner/price.h"
#include "unit/formulas.h"

namespace planner::planner_published_test {

using zero::Plan;

constexpr double kGB = 1e9;
constexpr double kMiB = 0x1p20;
constexpr double kTiB = 0x1p40;

// The largest model whose state fits 32 GB on 64 ranks, by what an engine would hold.
double largest_in_table_two(const Plan& plan) {
  const auto bytes = [&](std::int64_t parameters) {
    return estimate(shape_of(parameters), plan.bf16(), zero::AdamW{}, 64).state.total();
  };
  return static_cast<double>(largest(32'000'000'000, bytes, 2'000'000'000, 1e-4)) / 1e9;
}

// Rows 2 to 5 of the table are row 1, as printed, times the ranks of model parallelism.
TEST(ZeroPaper, LargestModelsOfTableTwo) {
  EXPECT_NEAR(largest_in_table_two(Plan::ddp()), 2, 0.02);
  const std::array<std::tuple<Plan, double, double, double>, 3> rows{
      {{Plan::zero1(), 7.6, 7.64, 0.01}, {Plan::zero2(), 14.4, 14.42, 0.01}, {Plan::zero3(), 128, 128, 0.1}}};
  for (const auto& [plan, printed, exact, margin] : rows) {
    const double found = largest_in_table_two(plan);
    EXPECT_NEAR(found, printed, 0.01 * printed) << plan.label();
    EXPECT_NEAR(found, exact, margin) << plan.label();
  }
}

// Section 3: GPT-2 with 1.5 B parameters. "About 60 GB", "about 8 GB" with checkpoints, of which this is what the
// layers' inputs and one layer's recomputation need.
TEST(ZeroPaper, Gpt2OfOneAndAHalfBillion) {
  const zero::Estimate estimated = estimate(shape_of(1'500'000'000), Plan::ddp().bf16(), zero::AdamW{}, 1);
  EXPECT_NEAR(static_cast<double>(estimated.state.total()), 24 * kGB, 0.001 * kGB);
  EXPECT_NEAR(static_cast<double>(estimated.state.parameter), 3 * kGB, 0.001 * kGB);
  const Transformer gpt2{.hidden = 1600, .layers = 48, .seq = 1024, .batch = 32};
  EXPECT_NEAR(zero_activations(gpt2), 60.4 * kGB, 0.05 * kGB);
  EXPECT_NEAR(zero_checkpoints(gpt2, 1), 5.0 * kGB, 0.05 * kGB);
  EXPECT_NEAR(zero_activations(gpt2) / gpt2.layers, 1.3 * kGB, 0.05 * kGB);
  // A flat fp32 gradient of all parameters at once.
  EXPECT_EQ(1'500'000'000.0 * size_of(zero::Dtype::f32), 6 * kGB);
  EXPECT_EQ(3'000'000'000.0 * size_of(zero::Dtype::f32), 12 * kGB);
}

// Section 6.1 prints 33 and 2 GB, half of what section 3.2's 16 bits an element make; the ratio is the same.
TEST(ZeroPaper, PartitionedCheckpointsOfAHundredBillion) {
  const Transformer model{.hidden = 8192, .layers = 125, .seq = 1024, .batch = 32};
  EXPECT_NEAR(zero_checkpoints(model, 1), 67.1 * kGB, 0.05 * kGB);
  EXPECT_NEAR(zero_checkpoints(model, 1), 62.5 * kGiB, 0.01 * kGiB);
  EXPECT_NEAR(zero_checkpoints(model, 16), 4.19 * kGB, 0.005 * kGB);
  EXPECT_NEAR(zero_checkpoints(model, 1) / 2, 33 * kGB, kGB);
  EXPECT_NEAR(zero_checkpoints(model, 16) / 2, 2 * kGB, 0.1 * kGB);
}

TEST(ZeroInfinityPaper, StatesAndWorkingMemory) {
  struct Row {
    double layers, hidden, trillions, states, working;  // TiB, GiB
  };
  for (const Row& row :
       {Row{80, 10240, .10, 1.83, 1.56}, Row{100, 20480, .50, 9.16, 6.25}, Row{128, 25600, 1.01, 18.31, 9.77},
        Row{195, 65536, 10.05, 182.81, 64}, Row{315, 163840, 101.47, 1845.70, 400}}) {
    const Transformer model{.hidden = row.hidden, .layers = row.layers};
    EXPECT_NEAR(infinity_parameters(model) / 1e12, row.trillions, 0.005);
    EXPECT_NEAR(infinity_states(model) / kTiB, row.states, 0.005);
    EXPECT_NEAR(infinity_working_memory(model) / kGiB, row.working, 0.006);
  }
}

DeepSpeedSetting t5() {
  return {.parameters = 2851e6, .largest_layer = 32e6, .devices = 8};
}

void expect_needs(const DeepSpeedNeeds& needs, double host, double device) {
  EXPECT_NEAR(needs.host / kGiB, host, 0.005);
  EXPECT_NEAR(needs.device / kGiB, device, 0.005);
}

TEST(DeepSpeedEstimators, StageTwoOfThreeBillionOnEightDevices) {
  DeepSpeedSetting setting = t5();
  EXPECT_NEAR(deepspeed_stage2(setting).device / kGiB, 11.28, 0.005);
  EXPECT_NEAR(deepspeed_stage2_device_as_documented(setting) / kGiB, 15.93, 0.005);
  setting.offload_optimizer = true;
  expect_needs(deepspeed_stage2(setting), 127.45, 5.31);
}

TEST(DeepSpeedEstimators, StageThreeOfThreeBillionOnEightDevices) {
  DeepSpeedSetting setting = t5();
  expect_needs(deepspeed_stage3(setting), 1.43, 6.09);
  setting.offload_optimizer = true;
  expect_needs(deepspeed_stage3(setting), 63.72, .78);
  setting.offload_parameters = true;
  expect_needs(deepspeed_stage3(setting), 71.69, .12);
  setting.sharded_from_the_start = false;
  expect_needs(deepspeed_stage3(setting), 127.45, .12);
}

struct Measure {
  Transformer model;
  double sequence, selective, both, full;  // over tensor parallelism alone
  double alone, with_both;                 // MiB a layer
};

TEST(KorthikantiPaper, ActivationsOfALayer) {
  for (const Measure& row : {Measure{{64, 6144, 1, 2048, 4}, .668, .494, .161, .076, 1264, 204},
                             Measure{{96, 12288, 1, 2048, 1}, .620, .565, .185, .087, 552, 102},
                             Measure{{128, 20480, 1, 2048, 1}, .583, .619, .202, .095, 840, 170},
                             Measure{{160, 25600, 1, 2048, 1}, .583, .619, .202, .095, 1050, 212.5}}) {
    const auto bytes = [&](bool sequence, Recompute recompute) {
      return layer_activations(row.model, 8, sequence, recompute);
    };
    const double alone = bytes(false, Recompute::none);
    EXPECT_NEAR(alone / kMiB, row.alone, 0.5);
    EXPECT_NEAR(bytes(true, Recompute::none) / alone, row.sequence, 0.0006);
    EXPECT_NEAR(bytes(false, Recompute::selective) / alone, row.selective, 0.0006);
    EXPECT_NEAR(bytes(true, Recompute::selective) / alone, row.both, 0.0006);
    EXPECT_NEAR(bytes(false, Recompute::full) / alone, row.full, 0.0006);
    EXPECT_NEAR(bytes(true, Recompute::selective) / kMiB, row.with_both, 0.5);
  }
}

TEST(KorthikantiPaper, OneRankKeepsThirtyFourAndTheScores) {
  const Transformer model{.heads = 96, .hidden = 12288, .seq = 2048, .batch = 1};
  EXPECT_EQ(layer_activations(model, 1, false, Recompute::none), 2048.0 * 12288 * (34 + 80));
}

TEST(KorthikantiPaper, SelectiveRecomputationSavesMuchAtLittleCost) {
  const Transformer gpt3{.heads = 96, .hidden = 12288, .layers = 96, .seq = 2048};
  const Transformer mt_nlg{.heads = 128, .hidden = 20480, .layers = 105, .seq = 2048};
  EXPECT_NEAR(saved_by_selective_recompute(gpt3), 0.70, 0.005);
  EXPECT_NEAR(saved_by_selective_recompute(mt_nlg), 0.65, 0.005);
  EXPECT_NEAR(operations_of_selective_recompute(gpt3, 51200), 1.027, 0.0005);
  EXPECT_NEAR(operations_of_selective_recompute(mt_nlg, 51200), 1.016, 0.0005);
}

// 17.2 B are printed as 284 GB, which is not 16 bytes each.
TEST(ZeroOffloadPaper, StateAndWhatStaysOnTheDevice) {
  EXPECT_EQ(kStateBytes * 8, 128);
  EXPECT_EQ(kStateBytes * 11, 176);
  EXPECT_NEAR(kStateBytes * 17.2, 275.2, 1e-9);
  const std::array<std::pair<Offloaded, double>, 4> table{
      {{Offloaded::nothing, 1}, {Offloaded::gradients, 1.14}, {Offloaded::optimizer, 4}, {Offloaded::both, 8}}};
  for (const auto& [offloaded, saving] : table)
    EXPECT_NEAR(kStateBytes / offload_device_bytes(offloaded), saving, 0.005);
  const double ideal = 32 * kGB / offload_device_bytes(Offloaded::both);
  EXPECT_EQ(ideal, 16e9);
  EXPECT_NEAR(13e9 / ideal, 0.81, 0.005);
}

TEST(ZeroPlusPlusPaper, VolumeAcrossHosts) {
  EXPECT_EQ(zero3_volume(), 3);
  EXPECT_EQ(zeropp_volume(0), 0.75);
  EXPECT_NEAR(zeropp_volume(2048), 0.7520, 0.00005);
  EXPECT_EQ(secondary_partition(13e9, 8), 3.25 * kGB);
}

// Three linear layers of 2048 by 2048, with biases.
Shape three_linears() {
  Shape shape;
  for (const char* unit : {"0", "1", "2"}) {
    shape.infos.push_back({.name = std::string(unit) + ".weight", .shape = {2048, 2048}});
    shape.infos.push_back({.name = std::string(unit) + ".bias", .shape = {2048}});
    shape.units.insert(shape.units.end(), 2, unit);
  }
  return shape;
}

TEST(SeedExperiment, StateOfThreeLinearsInFp32) {
  const std::array<std::pair<Plan, double>, 4> megabytes{
      {{Plan::ddp(), 201.4}, {Plan::zero1(), 125.9}, {Plan::zero2(), 88.1}, {Plan::zero3(), 50.4}}};
  for (const auto& [plan, expected] : megabytes) {
    const auto bytes = estimate(three_linears(), plan.fp32(), zero::Adam{}, 4).state.total();
    EXPECT_NEAR(static_cast<double>(bytes) / 1e6, expected, 0.05) << plan.label();
  }
}

}  // namespace planner::planner_published_test
