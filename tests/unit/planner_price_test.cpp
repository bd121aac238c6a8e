#include "planner/price.h"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "golden_table.h"
#include "planner/answer_json.h"
#include "planner/quantity.h"
#include "unit/planner_requests.h"

namespace planner::planner_price_test {

using zero::Plan;

double state_gigabytes(std::int64_t parameters, int ranks, const Plan& plan) {
  const auto bytes = estimate(shape_of(parameters), plan.bf16(), zero::AdamW{}, ranks).state.total();
  return static_cast<double>(bytes) / 1e9;
}

TEST(PaperTable, StateIsThatOfTheZeroPaper) {
  for (const golden::Row& row : golden::table("zero_table_1")) {
    std::string fits = "none";
    for (const char* plan : {"zero3", "zero2", "zero1"}) {
      const double gigabytes =
          state_gigabytes(static_cast<std::int64_t>(row.number("parameters")), row.count("ranks"), Plan::named(plan));
      row.expect_near(plan, gigabytes, 1);
      if (gigabytes <= 32) fits = plan;
    }
    row.expect("fits", fits);
  }
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
