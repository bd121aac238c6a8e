#include "planner/fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "expanded.h"
#include "planner/answer_json.h"
#include "planner/loss_price.h"
#include "unit/planner_requests.h"
#include "unit/refused.h"

namespace planner::planner_fit_test {

using zero::MeshShape;
using zero::Plan;
using zero::Wire;

Request seven_billion(std::int64_t device_memory) {
  return request_of(shape_of(models::llama_preset("7b")), 8, device_memory);
}

TEST(PlannerPrice, PeakIsStateActivationsAndBuffersOfOneMoment) {
  for (const Cost& cost : price(seven_billion(80'000'000'000))) {
    const zero::Estimate& e = cost.estimate;
    EXPECT_EQ(cost.peak, peak_of(e, cost.activations).bytes) << cost.plan.label();
    EXPECT_GE(cost.peak, e.held.peak_held - e.largest_slice() + cost.activations.bytes);
    EXPECT_LE(cost.peak, e.held.peak_held + cost.activations.bytes);
    EXPECT_EQ(e.held.peak_held,
              e.state.total() + e.held[zero::Owner::reduction].peak + e.held[zero::Owner::gathered].peak);
    EXPECT_EQ(cost.fits(), cost.peak <= 80'000'000'000);
  }
}

TEST(PlannerPrice, WhatWholeTensorsExchangeIsHeldAllTheTime) {
  Request request = request_of(shape_of(models::llama_preset("tiny")), 4, 1'000'000'000);
  const std::int64_t without = price(request, Plan::zero2()).peak;
  const std::int64_t adamw = price(request, Plan::zero2()).estimate.state.total();
  request.optimizer = zero::Muon{};
  const Cost cost = price(request, Plan::zero2());
  ASSERT_GT(cost.estimate.held[zero::Owner::update].peak, 0);
  EXPECT_EQ(cost.peak - cost.estimate.state.total(), without - adamw + cost.estimate.held[zero::Owner::update].peak);
}

TEST(PlannerPrice, PaddingIsWhatTheLayoutAddsToTheParameters) {
  const Shape shape = shape_of(models::llama_preset("micro"));
  const Request request = request_of(shape, 4, 1'000'000'000);
  const std::int64_t extra = zero::Layout(specs(expanded(shape), Plan::ddp()), 4).length() - shape.parameters;
  ASSERT_GT(extra, 0);
  EXPECT_EQ(price(request, Plan::ddp()).padding, 16 * extra);
  EXPECT_EQ(price(request, Plan::zero1()).padding, (8 + 2) * extra);
  EXPECT_EQ(price(request, Plan::zero2()).padding, (4 + 3) * extra);
  EXPECT_EQ(price(request, Plan::zero3()).padding, 4 * extra);
  EXPECT_EQ(price(request, Plan::zero3().bf16()).padding, 4 * extra);
}

TEST(PlannerPrice, CommonMemoryNeedsNoGatheredCopies) {
  Request request = seven_billion(80'000'000'000);
  const Cost apart = price(request, Plan::zero3().bf16());
  request.memory = zero::Memory::common;
  const Cost common = price(request, Plan::zero3().bf16());
  EXPECT_GT(apart.estimate.held[zero::Owner::gathered].peak, 0);
  EXPECT_EQ(common.estimate.held[zero::Owner::gathered].peak, 0);
  EXPECT_EQ(apart.peak - common.peak, apart.estimate.held[zero::Owner::gathered].peak);
}

TEST(PlannerPrice, AccumulationKeepsGradientsInFp32) {
  const Shape shape = shape_of(std::int64_t{1} << 30);
  const auto gradient = [&](int accumulate) {
    return estimate(shape, Plan::ddp().bf16().accumulate(accumulate), zero::AdamW{}, 8).state.gradient;
  };
  EXPECT_EQ(gradient(8), 2 * gradient(1));
}

TEST(PlannerPrice, RefusesHostsThatDoNotDivideTheRanksAndSequencesBeyondThePositions) {
  Request request = seven_billion(80'000'000'000);
  request.hosts = 3;
  EXPECT_THROW(price(request), zero::ConfigError);
  request.hosts = 1;
  request.seq = 5000;
  EXPECT_THROW(price(request), zero::ConfigError);
}

// With sums that widen on their way between hosts too.
TEST(PlannerPrice, BytesInsideAndAcrossHostsAreAll) {
  Request request = request_of(shape_of(models::llama_preset("7b")), 16, 80'000'000'000, 4);
  request.hosts = 4;
  const Answer spread = answer(request, "7b", "adamw");
  const nlohmann::json json = nlohmann::json::parse(to_json(spread));
  for (const nlohmann::json& plan : json.at("plans")) {
    const std::int64_t inside = plan.at("wire_bytes_inside_hosts"), across = plan.at("wire_bytes_across_hosts");
    EXPECT_EQ(plan.at("wire_bytes_per_step"), inside + across) << plan.at("plan");
  }
  request.hosts = 1;
  for (const Cost& cost : price(request)) EXPECT_EQ(cost.wire(), cost.estimate.wire.bytes());
}

TEST(Largest, FindsTheLastThatFits) {
  const auto square = [](std::int64_t n) { return n * n; };
  for (const std::int64_t start : {1, 7, 31, 32, 1000}) {
    EXPECT_EQ(largest(1000, square, start, 0), 31) << start;
    EXPECT_EQ(largest(1024, square, start, 0), 32) << start;
    EXPECT_EQ(largest(1, square, start, 0), 1) << start;
    EXPECT_EQ(largest(0, square, start, 0), 0) << start;
  }
}

TEST(PlannerReach, OneMoreOfTheLargestBatchDoesNotFit) {
  Request request = seven_billion(40'000'000'000);
  for (const Cost& cost : price(request)) {
    const std::int64_t batch = largest_batch(request, cost);
    if (cost.plan.label() == "ddp") {
      EXPECT_EQ(batch, 0);
      continue;
    }
    request.batch = batch;
    EXPECT_TRUE(price(request, cost.plan).fits()) << cost.plan.label();
    request.batch = batch + 1;
    EXPECT_FALSE(price(request, cost.plan).fits()) << cost.plan.label();
  }
}

TEST(PlannerReach, ALittleMoreThanTheLargestModelDoesNotFit) {
  Request request = seven_billion(40'000'000'000);
  for (const Plan& plan : request.plans) {
    const std::int64_t parameters = largest_parameters(request, plan);
    Request other = request;
    other.shape = shape_of(parameters);
    EXPECT_TRUE(price(other, plan).fits()) << plan.label();
    other.shape = shape_of(parameters + parameters / 100);
    EXPECT_FALSE(price(other, plan).fits()) << plan.label();
  }
}

TEST(PlannerReach, OneHostFewerThanTheLeastDoesNotFit) {
  Request request = request_of(shape_of(models::llama_preset("70b")), 8, 80'000'000'000);
  const Plan plan = Plan::zero3().bf16();
  const int alone = least_ranks(request, plan);
  request.ranks = alone - 1;
  EXPECT_FALSE(price(request, plan).fits());
  request.ranks = alone;
  EXPECT_TRUE(price(request, plan).fits());
  request.ranks = 16;
  request.hosts = 2;
  const int hosts = least_ranks(request, plan);
  EXPECT_EQ(hosts % 8, 0);
  EXPECT_LT(hosts - alone, 8);
  EXPECT_GE(hosts, alone);
}

TEST(PlannerReach, NoNumberOfRanksFitsWhatIsReplicated) {
  EXPECT_EQ(least_ranks(seven_billion(80'000'000'000), Plan::ddp().bf16()), 0);
}

TEST(PlannerFit, FastestFirstAndOnlyWhatFits) {
  std::vector<Cost> costs(4);
  costs[0].seconds = 3;
  costs[1].seconds = 1;
  costs[1].excess = 5;
  costs[2].seconds = 2;
  costs[2].peak = 9;
  costs[3].seconds = 2.0001;
  EXPECT_EQ(ranking(costs), (std::vector<std::size_t>{3, 2, 0}));
}

// The fastest rounds: it comes behind those that do not.
TEST(PlannerFit, WhatRoundsComesLast) {
  std::vector<Cost> costs(3);
  costs[0].seconds = 1;
  costs[0].rounds = true;
  costs[1].seconds = 3;
  costs[2].seconds = 2;
  EXPECT_EQ(ranking(costs), (std::vector<std::size_t>{2, 1, 0}));
}

TEST(PlannerFit, PlansRoundWhereCodesCross) {
  const MeshShape hosts(4, {.shard = 2});
  for (const std::string_view preset : Plan::presets()) {
    const bool exact = std::ranges::count(Plan::exact_presets(), preset) > 0;
    EXPECT_EQ(rounds(Plan::named(preset).bf16(), hosts), !exact) << preset;
    EXPECT_EQ(loss_price(Plan::named(preset)).has_value(), !exact) << preset;
    EXPECT_FALSE(rounds(Plan::named(preset), 1)) << preset;
  }
  EXPECT_FALSE(rounds(Plan::sdp4bit(), 4)) << "one group: nothing crosses";
  EXPECT_TRUE(rounds(Plan::zeropp(), 4)) << "parameters are coded inside a group, too";
  EXPECT_TRUE(rounds(Plan::hybrid().reduce_in(Wire::bf16_codes), hosts));
  EXPECT_FALSE(loss_price(Plan::hybrid().reduce_in(Wire::bf16_codes)));
  EXPECT_FALSE(loss_price(Plan::hybrid().reduce_in(Wire::int4).error_feedback(true)));
  EXPECT_NE(loss_price(Plan::zeropp().error_feedback(true))->mean, loss_price(Plan::zeropp())->mean);
  EXPECT_TRUE(rounds(Plan::ddp().activation_budget({.share = .5}).activations_in(Wire::int8), 2));
}

// As the page has them.
TEST(PlannerFit, LossesAreThoseThatWereMeasured) {
  std::ifstream file(ZERO_SOURCE_DIR "/docs/numbers.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::map<std::tuple<Wire, Wire, bool>, std::string> names{
      {{Wire::int8, Wire::int4, false}, "`zeropp`"},
      {{Wire::int8, Wire::int4, true}, "`zeropp`, errors fed back"},
      {{Wire::int4_differences, Wire::int4_hadamard, false}, "`sdp4bit`"},
      {{Wire::int4_differences, Wire::int4_hadamard, true}, "`sdp4bit`, errors fed back"},
      {{Wire::int4_differences, Wire::int4, false}, "`sdp4bit`, gradients in `int4`"},
      {{Wire::int4, Wire::int4_hadamard, false}, "`sdp4bit`, weights in `int4`"}};
  ASSERT_EQ(loss_prices().size(), names.size());
  for (const LossPrice& each : loss_prices()) {
    const std::string name = names.at({each.gathered, each.reduced, each.feeds_back});
    const auto row = page.find("\n| " + name + " | ");
    ASSERT_NE(row, std::string::npos) << name;
    char figures[64];
    std::snprintf(figures, sizeof figures, "| +%.2f %% | +%.2f %% |", each.mean, each.worst);
    EXPECT_NE(page.substr(row + 1, page.find('\n', row + 1) - row).find(figures), std::string::npos) << name << figures;
  }
}

std::vector<std::string> advice(const Request& request, const Plan& plan) {
  return reach_of(request, price(request, plan)).reasons;
}

TEST(PlannerFit, SaysByHowMuchWhatDominatesAndWhatHelps) {
  const Request request = seven_billion(80'000'000'000);
  const std::vector<std::string> found = advice(request, request.plans[0]);
  EXPECT_TRUE(mentions(found, "GB at its peak (" + price(request, request.plans[0]).moment + ")"));
  EXPECT_TRUE(mentions(found, "optimizer state"));
  EXPECT_TRUE(mentions(found, "zero1 shards it"));
  EXPECT_TRUE(mentions(found, "no number of ranks helps"));
  EXPECT_TRUE(advice(request, request.plans[3]).empty());
}

TEST(PlannerFit, SaysWhichBatchOrHowManyRanksWouldDo) {
  Request request = seven_billion(40'000'000'000);
  request.batch = 1000;
  const Cost cost = price(request, request.plans[3]);
  const std::int64_t batch = largest_batch(request, cost);
  ASSERT_GT(batch, 0);
  const std::vector<std::string> found = advice(request, request.plans[3]);
  EXPECT_TRUE(mentions(found, "a --batch of up to " + std::to_string(batch)));
  EXPECT_TRUE(mentions(found, "activations"));
  const Request large = request_of(shape_of(models::llama_preset("70b")), 8, 80'000'000'000);
  const std::string ranks = std::to_string(least_ranks(large, large.plans[3]));
  EXPECT_TRUE(mentions(advice(large, large.plans[3]), "it fits on " + ranks + " ranks"));
}

nlohmann::json answered(Request request) {
  return nlohmann::json::parse(to_json(answer(std::move(request), "7b", "adamw")));
}

TEST(PlannerJson, SaysWhyAPlanDoesNotFitAndHowFarEachGoes) {
  const auto json = answered(seven_billion(80'000'000'000));
  EXPECT_EQ(json["device_memory"], 80'000'000'000);
  EXPECT_EQ(json["model"], "7b");
  EXPECT_EQ(json["fitting"].size(), 3);
  const auto& ddp = json["plans"][0];
  EXPECT_EQ(ddp["fits"], false);
  EXPECT_EQ(ddp["excess_bytes"], ddp["peak_bytes"].get<std::int64_t>() - 80'000'000'000);
  EXPECT_GE(ddp["reason"].size(), 3);
  EXPECT_EQ(ddp["largest_batch"], 0);
  EXPECT_TRUE(ddp["least_ranks"].is_null());
  EXPECT_GT(json["plans"][3]["largest_batch"], 4);
  EXPECT_GT(json["plans"][3]["largest_parameters"], 7'000'000'000);
  EXPECT_FALSE(json["plans"][3].contains("reason"));
}

TEST(PlannerJson, NamesWhatWasAssumed) {
  const auto json = answered(request_of(shape_of(std::int64_t{7'500'000'000}), 64, 80'000'000'000));
  EXPECT_NE(json["assumed"].dump().find("usual proportions"), std::string::npos);
  EXPECT_NE(json["assumed"].dump().find("h100"), std::string::npos);
  EXPECT_EQ(answered(seven_billion(80'000'000'000))["assumed"].size(), 1);
}

TEST(PlannerJson, SaysThatSecondsAreEstimatedUntilTheyAreMeasured) {
  Request request = seven_billion(80'000'000'000);
  const auto estimated = answered(request);
  EXPECT_EQ(estimated["profile_estimated"], true);
  EXPECT_NE(estimated["assumed"].dump().find("estimated from data sheets, not measured"), std::string::npos);
  request.profile.estimated = false;
  const auto measured = answered(request);
  EXPECT_EQ(measured["profile_estimated"], false);
  EXPECT_EQ(measured["assumed"].dump().find("estimated"), std::string::npos);
}

TEST(PlannerJson, SaysThatDevicesHaveNoLinks) {
  Request request = seven_billion(80'000'000'000);
  const double linked = answered(request)["plans"][3]["step_seconds"];
  request.profile.collective_bandwidth = 0;
  const auto staged = answered(request);
  EXPECT_NE(staged["assumed"].dump().find("through their host's memory"), std::string::npos);
  EXPECT_GT(staged["plans"][3]["step_seconds"], linked);
}

TEST(PlannerJson, ATrillionOnTenThousandRanksIsPriced) {
  Request request = request_of(shape_of(std::int64_t{1'000'000'000'000}), 10'000, 80'000'000'000);
  request.hosts = 1250;
  const auto json = answered(std::move(request));
  EXPECT_EQ(json["plans"][3]["state_gb"], 1.6);
  EXPECT_LT(json["plans"][3]["wire_bytes_across_hosts"], json["plans"][3]["wire_bytes_per_step"]);
}

std::string refusal(const std::function<void(Request&)>& change) {
  Request request = request_of(shape_of(models::llama_preset("micro")), 4, 1'000'000'000);
  change(request);
  return error_of([&] { price(request); });
}

// No answer rather than one whose figures do not fit 64 bits, or one that takes minutes.
TEST(PlannerPrice, RefusesWhatItCannotCount) {
  EXPECT_NE(refusal([](Request& r) { r.batch = std::int64_t{1} << 62; }).find("batch times seq"), std::string::npos);
  EXPECT_NE(refusal([](Request& r) { r.shape = shape_of(2'000'000'000'000'000); }).find("parameters"),
            std::string::npos);
  EXPECT_NE(refusal([](Request& r) { r.plans = {Plan::zero2().accumulate(1 << 20)}; }).find("micro-batches"),
            std::string::npos);
  const auto many = [](Request& r) {
    r.shape = shape_of(900'000'000'000'000);
    r.plans = {Plan::zero3().accumulate(1 << 13)};
  };
  EXPECT_NE(refusal(many).find("parameters times micro-batches"), std::string::npos);
  const auto wide = [](Request& r) {
    r.shape = shape_of(900'000'000'000'000);
    r.batch = 1'000'000;
    r.seq = 10'000;
  };
  EXPECT_NE(refusal(wide).find("activations"), std::string::npos);
  models::LlamaConfig huge = models::llama_preset("micro");
  huge.hidden_size = std::int64_t{1} << 62;
  EXPECT_THROW(shape_of(huge), zero::ConfigError);
}

TEST(PlannerPrice, HasCommonMemoryOnOneHostOnly) {
  EXPECT_NE(refusal([](Request& r) {
              r.hosts = 2;
              r.memory = zero::Memory::common;
            }).find("one host only"),
            std::string::npos);
}

TEST(PlannerFit, NeverDeniesTheRanksThatWereGiven) {
  for (const int ranks : {3, 8, 100, 400'000}) {
    Request request = request_of(shape_of(models::llama_preset("micro")), ranks, 0);
    for (const Plan& plan : request.plans) {
      request.device_memory = price(Request(request), plan).peak;
      const int least = least_ranks(request, plan);
      EXPECT_GE(least, 1);
      EXPECT_LE(least, ranks) << plan.label();
    }
  }
}

}  // namespace planner::planner_fit_test
