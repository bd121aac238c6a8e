// What is chosen of activations where no plan fits.
#include "planner/activation_choice.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/answer_json.h"
#include "unit/planner_requests.h"

namespace planner::planner_activation_choice_test {

using zero::Plan;

// Of a model with few layers, all of which are gone through.
Request asked(std::int64_t batch, std::int64_t device_memory) {
  Request request = request_of(shape_of(models::llama_preset("small")), 4, device_memory);
  request.batch = batch;
  request.seq = 256;
  request.plans = {Plan::ddp(), Plan::zero3()};
  request.chooses_activations = true;
  return request;
}

std::vector<Cost> chosen(const Request& request) {
  std::vector<Cost> costs = price(request);
  choose_activations(request, costs);
  return costs;
}

// Device memory in which a plan has so much of its activations, and none for more.
std::int64_t memory_for(const Plan& plan, std::int64_t batch, double share) {
  return price_bytes(asked(batch, 1), plan.activation_budget({.share = share})).peak;
}

TEST(ActivationChoices, AreNotMadeWhereAPlanFits) {
  const Request request = asked(1, memory_for(Plan::zero3(), 1, 1));
  const std::vector<Cost> before = price(request), after = chosen(request);
  ASSERT_FALSE(before[0].fits());
  ASSERT_TRUE(before[1].fits());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(after[i].plan.activation_budget(), before[i].plan.activation_budget());
    EXPECT_EQ(after[i].peak, before[i].peak);
  }
}

TEST(ActivationChoices, AreTheLargestBudgetThatFitsOfOneSequence) {
  for (const auto& [room, share] : {std::pair(.8, .75), {.75, .75}, {.7, .5}, {.3, .25}}) {
    const Request request = asked(1, memory_for(Plan::zero3(), 1, room));
    const Cost cost = chosen(request)[1], whole = price(asked(1, 1), Plan::zero3());
    EXPECT_TRUE(cost.fits());
    EXPECT_EQ(cost.plan.activation_budget().share, share);
    EXPECT_GT(cost.again.seconds, 0);
    EXPECT_GT(cost.dearer, 0);
    EXPECT_NEAR(cost.dearer, cost.seconds - whole.seconds, 1e-12);
    EXPECT_FALSE(chosen(request)[0].fits());
  }
}

// Below a quarter, the least.
TEST(ActivationChoices, AreTheLeastBudgetAtLast) {
  Request request = asked(1, 1);
  const Plan plan = Plan::zero3();
  const std::int64_t least =
      least_activation_budget(micro_batch(request, plan), pace_for(request.profile, plan.precision()));
  const std::int64_t state = price_bytes(request, plan).peak - activations(micro_batch(request, plan)).bytes;
  request.device_memory = state + least + least / 20;
  const Cost cost = chosen(request)[1];
  EXPECT_TRUE(cost.fits());
  EXPECT_GE(cost.plan.activation_budget().bytes, least);
  request.device_memory = state + least - least / 20;
  EXPECT_FALSE(chosen(request)[1].fits());
}

TEST(ActivationChoices, KeepTheTokensOfAStep) {
  Request request = asked(6, memory_for(Plan::zero3(), 6, .4));
  for (Plan& plan : request.plans) plan = plan.accumulate(2);
  for (const Cost& cost : chosen(request)) {
    if (!cost.fits()) continue;
    EXPECT_EQ(cost.batch * cost.plan.accumulate(), 12);
    EXPECT_LE(cost.peak, *request.device_memory);
  }
  EXPECT_TRUE(chosen(request)[1].fits());
}

// To split costs calls and weights that are read again, to compute again costs operators.
TEST(ActivationChoices, AreTheFasterWay) {
  EXPECT_EQ(chosen(asked(2, memory_for(Plan::zero3(), 2, .8)))[1].plan.activation_budget(),
            zero::ActivationBudget{.share = .75});
  Request request = asked(4, memory_for(Plan::zero3(), 4, .3));
  request.profile.fp32.operator_seconds = request.profile.collective_seconds = 0;
  request.profile.fp32.matrix_bandwidth = request.profile.collective_bandwidth = 1e18;
  const Cost split = chosen(request)[1];
  EXPECT_FALSE(split.plan.activation_budget());
  EXPECT_EQ(split.batch, 1);
  EXPECT_EQ(split.plan.accumulate(), 4);
}

TEST(ActivationChoices, AreInTheAnswer) {
  const Request request = asked(1, memory_for(Plan::zero3(), 1, .8));
  const Answer found = answer(request, "small", "adamw");
  const auto json = nlohmann::json::parse(to_json(found));
  const auto& plan = json["plans"][1];
  EXPECT_EQ(plan["activation_budget"], "75%");
  EXPECT_EQ(plan["batch"], 1);
  EXPECT_EQ(plan["accumulate"], 1);
  EXPECT_GT(plan["recomputation_seconds"], 0);
  EXPECT_LT(plan["recomputation_share"], .1);
  EXPECT_NEAR(plan["seconds_more"].get<double>(), plan["recomputation_seconds"].get<double>(), 1e-9);
  EXPECT_EQ(json["fitting"], nlohmann::json::array({"zero3"}));
  EXPECT_FALSE(json["plans"][0].contains("activation_budget"));
}

}  // namespace planner::planner_activation_choice_test
