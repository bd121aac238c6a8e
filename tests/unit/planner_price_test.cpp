#include "planner/price.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "planner/answer_json.h"
#include "planner/quantity.h"
#include "zero/error.h"

namespace planner::planner_price_test {

using zero::Plan;

std::vector<Plan> every_plan(zero::Precision precision = zero::Precision::bf16, int accumulate = 1) {
  std::vector<Plan> plans;
  for (const std::string_view preset : Plan::stages())
    plans.push_back(Plan::named(preset).precision(precision).accumulate(accumulate));
  return plans;
}

Request request_of(Shape shape, int ranks) {
  return {.shape = std::move(shape), .ranks = ranks, .profile = profile_named("h100"), .plans = every_plan()};
}

double state_gigabytes(std::int64_t parameters, int ranks, const Plan& plan) {
  const auto bytes = estimate(shape_of(parameters), plan.bf16(), zero::AdamW{}, ranks).state.total();
  return static_cast<double>(bytes) / 1e9;
}

// Table 1 of the ZeRO paper: GB of state for each rank with P_os, P_os+g and P_os+g+p.
struct PaperRow {
  std::int64_t parameters;
  int ranks;
  std::array<double, 3> gigabytes;
};

class PaperTable : public testing::TestWithParam<PaperRow> {};

// The paper cuts large figures off where it should round them, so that a difference of one in the last digit counts as
// equal. A plan of one rank shards nothing, as in the table.
TEST_P(PaperTable, StateIsThatOfTheZeroPaper) {
  const PaperRow& row = GetParam();
  const std::array<Plan, 3> plans{Plan::zero1(), Plan::zero2(), Plan::zero3()};
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const double printed = row.gigabytes[i];
    const double digit = printed >= 100 ? 1 : printed >= 2 ? 0.1 : 0.01;
    EXPECT_NEAR(state_gigabytes(row.parameters, row.ranks, plans[i]), printed, digit) << plans[i].label();
  }
}

constexpr std::int64_t kBillion = 1'000'000'000;
INSTANTIATE_TEST_SUITE_P(
    ZeroPaper, PaperTable,
    testing::Values(PaperRow{7'500'000'000, 1, {120, 120, 120}}, PaperRow{7'500'000'000, 4, {52.5, 41.3, 30}},
                    PaperRow{7'500'000'000, 16, {35.6, 21.6, 7.5}}, PaperRow{7'500'000'000, 64, {31.4, 16.6, 1.88}},
                    PaperRow{7'500'000'000, 256, {30.4, 15.4, .47}}, PaperRow{7'500'000'000, 1024, {30.1, 15.1, .12}},
                    PaperRow{128 * kBillion, 1, {2048, 2048, 2048}}, PaperRow{128 * kBillion, 4, {896, 704, 512}},
                    PaperRow{128 * kBillion, 16, {608, 368, 128}}, PaperRow{128 * kBillion, 64, {536, 284, 32}},
                    PaperRow{128 * kBillion, 256, {518, 263, 8}}, PaperRow{128 * kBillion, 1024, {513, 257, 2}},
                    PaperRow{1000 * kBillion, 1, {16000, 16000, 16000}},
                    PaperRow{1000 * kBillion, 4, {7000, 5500, 4000}}, PaperRow{1000 * kBillion, 16, {4750, 2875, 1000}},
                    PaperRow{1000 * kBillion, 64, {4187, 2218, 250}},
                    PaperRow{1000 * kBillion, 256, {4046, 2054, 62.5}},
                    PaperRow{1000 * kBillion, 1024, {4011, 2013, 15.6}}),
    [](const auto& row) { return std::to_string(row.param.parameters) + "On" + std::to_string(row.param.ranks); });

// 32 GB of state, as the paper marks them; 128 B on 64 ranks are 32.0 to its digits, padding not counted.
TEST(PaperTable, CellsThatFitThirtyTwoGigabytes) {
  EXPECT_LE(state_gigabytes(7'500'000'000, 64, Plan::zero1()), 32);
  EXPECT_GT(state_gigabytes(7'500'000'000, 16, Plan::zero1()), 32);
  EXPECT_LE(state_gigabytes(7'500'000'000, 16, Plan::zero2()), 32);
  EXPECT_GT(state_gigabytes(7'500'000'000, 4, Plan::zero2()), 32);
  EXPECT_LE(state_gigabytes(7'500'000'000, 4, Plan::zero3()), 32);
  EXPECT_NEAR(state_gigabytes(128 * kBillion, 64, Plan::zero3()), 32.0, 0.01);
  EXPECT_LE(state_gigabytes(1000 * kBillion, 1024, Plan::zero3()), 32);
}

TEST(PlannerJson, HasTheKeysOfItsSchemaWithStateToThreeDigits) {
  const auto json = nlohmann::json::parse(to_json(answer(request_of(shape_of(7'500'000'000), 64), "", "adamw")));
  EXPECT_EQ(json["ranks"], 64);
  EXPECT_EQ(json["parameters"], 7'500'000'000);
  ASSERT_EQ(json["plans"].size(), 4);
  const std::array<std::pair<const char*, double>, 4> expected{
      {{"ddp", 120}, {"zero1", 31.4}, {"zero2", 16.6}, {"zero3", 1.88}}};
  for (std::size_t i = 0; i < 4; ++i) {
    const auto& plan = json["plans"][i];
    EXPECT_EQ(plan["plan"], expected[i].first);
    EXPECT_EQ(plan["state_gb"].get<double>(), expected[i].second);
    for (const char* key : {"parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "buffer_bytes",
                            "peak_bytes", "wire_bytes_per_step"})
      EXPECT_TRUE(plan[key].is_number_integer()) << key;
    EXPECT_TRUE(plan["step_seconds"].is_number());
    EXPECT_EQ(plan["fits"], true);
  }
}

}  // namespace planner::planner_price_test
