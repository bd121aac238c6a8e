// What would make a plan fit: each figure, planned again, does.
#include <gtest/gtest.h>

#include <utility>

#include "planner/fit.h"
#include "unit/planner_requests.h"

namespace planner::planner_advice_test {

using zero::Plan;

bool fits(Request request, const Plan& plan, std::int64_t batch, std::int64_t seq) {
  request.batch = batch;
  request.seq = seq;
  return price(request, plan).fits();
}

TEST(PlannerAdvice, OneTokenMoreThanTheLongestSequenceDoesNotFit) {
  Request request = request_of(shape_of(models::llama_preset("7b")), 8, 40'000'000'000);
  request.seq = 4096;
  int limited = 0;
  for (const Plan& plan : request.plans) {
    const Reach reach = reach_of(request, price(request, plan));
    for (const auto& [batch, seq] : {std::pair{request.batch, reach.longest_seq}, {1, reach.longest_seq_alone}}) {
      EXPECT_TRUE(seq == 0 || fits(request, plan, batch, seq)) << plan.label();
      EXPECT_FALSE(seq < 4096 && fits(request, plan, batch, seq + 1)) << plan.label();
      limited += seq > 0 && seq < 4096;
    }
  }
  EXPECT_GT(limited, 0);
}

TEST(PlannerAdvice, NoSequenceIsLongerThanTheModelHasPositions) {
  const Request request = request_of(shape_of(models::llama_preset("micro")), 8, 1'000'000'000'000);
  EXPECT_EQ(reach_of(request, price(request, request.plans[0])).longest_seq, 2048);
}

// The largest that divides the step: all that are larger do not fit.
TEST(PlannerAdvice, ASmallerBatchWithAccumulationHasAsManyTokens) {
  Request request = request_of(shape_of(models::llama_preset("7b")), 8, 60'000'000'000);
  request.batch = 12;
  request.seq = 2048;
  int found = 0;
  for (const Plan& plan : request.plans) {
    const Plan twice = plan.accumulate(2);
    const Reach reach = reach_of(request, price(request, twice));
    if (!reach.split) continue;
    ++found;
    EXPECT_EQ(reach.split->batch * reach.split->accumulate, 24);
    for (const std::int64_t batch : {8, 6, 4, 3, 2, 1}) {
      if (batch < reach.split->batch) continue;
      EXPECT_EQ(fits(request, plan.accumulate(static_cast<int>(24 / batch)), batch, 2048), batch == reach.split->batch);
    }
    EXPECT_TRUE(mentions(reach.reasons, "--batch " + std::to_string(reach.split->batch) + " --accumulate " +
                                            std::to_string(reach.split->accumulate)));
  }
  EXPECT_GT(found, 0);
  request.batch = 1;
  EXPECT_FALSE(reach_of(request, price(request, request.plans[3])).split) << "it fits";
}

TEST(PlannerAdvice, NoShorterSequencesWhereTheStateAloneIsTooLarge) {
  const Request request = request_of(shape_of(models::llama_preset("70b")), 8, 80'000'000'000);
  for (const Plan& plan : request.plans) {
    const Reach reach = reach_of(request, price(request, plan));
    EXPECT_EQ(reach.largest_batch + reach.longest_seq + reach.longest_seq_alone, 0);
    EXPECT_FALSE(reach.split);
    EXPECT_FALSE(mentions(reach.reasons, "--seq") || mentions(reach.reasons, "--batch")) << plan.label();
    EXPECT_TRUE(mentions(reach.reasons, "no batch and no sequence is small enough")) << plan.label();
  }
}

// Neither a smaller batch nor a shorter sequence would do by itself.
TEST(PlannerAdvice, NamesBothBatchAndSequenceWhereOneIsNotEnough) {
  Request request = request_of(shape_of(models::llama_preset("7b")), 8, 0);
  request.batch = 2'000'000;
  request.seq = 2048;
  const Plan plan = Plan::zero3().bf16();
  request.device_memory = price(
                              [&] {
                                Request one = request;
                                one.batch = 1;
                                one.seq = 1024;
                                return one;
                              }(),
                              plan)
                              .peak;
  const Reach reach = reach_of(request, price(request, plan));
  EXPECT_EQ(reach.largest_batch, 0);
  EXPECT_EQ(reach.longest_seq, 0);
  EXPECT_EQ(reach.longest_seq_alone, 1024);
  EXPECT_TRUE(mentions(reach.reasons, "--batch 1 and a --seq of up to 1024"));
}

}  // namespace planner::planner_advice_test
