#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "planner/plan_file.h"
#include "planner/profile.h"
#include "unit/refused.h"

namespace planner::planner_files_test {

PlanFile example() {
  return {.plan = "zero2",
          .settings = {{"precision", "bf16"},
                       {"accumulate", std::int64_t{8}},
                       {"resident_budget", std::int64_t{1} << 20},
                       {"reduce_in", "bf16"},
                       {"gather_in", "native"}},
          .optimizer = "lion",
          .ranks = 8,
          .model = "7b",
          .batch = 2,
          .seq = 4096,
          .recompute = "layers",
          .loss_pieces = 8};
}

TEST(PlanFile, ReadsWhatItWrote) {
  EXPECT_EQ(plan_file_from_json(to_json(example()), "x.json"), example());
  EXPECT_EQ(plan_file_from_json(to_json(PlanFile{}), "x.json"), PlanFile{});
}

TEST(PlanFile, WhatIsMissingHasItsDefault) {
  PlanFile expected;
  expected.plan = "zero1";
  EXPECT_EQ(plan_file_from_json(R"({"plan": "zero1"})", "x.json"), expected);
}

TEST(PlanFile, IsRefusedByName) {
  expect_refused("plan_file_refused", "x.json", [](const std::string& text) { plan_file_from_json(text, "x.json"); });
}

TEST(PlanFile, IntegersHaveTheRangeOfWhatHoldsThem) {
  EXPECT_EQ(plan_file_from_json(R"({"plan": "zero1", "batch": 9223372036854775807})", "x.json").batch,
            std::numeric_limits<std::int64_t>::max());
}

TEST(PlanFile, HasASchemaThatOlderOnesLack) {
  EXPECT_NE(to_json(example()).find("\"schema\": \"zero.plan-file/1\""), std::string::npos);
  const char* const same = R"({"schema": "zero.plan-file/1", "version": "9.8.7", "plan": "zero1"})";
  EXPECT_EQ(plan_file_from_json(same, "x.json").plan, "zero1");
}

TEST(PlanFile, NamesTheFileThatCannotBeRead) {
  expect_in(error_of([] { read_plan_file("/nonexistent/plan.json"); }), {"/nonexistent/plan.json"});
}

zero::Plan plan_of(const PlanFile& file) {
  zero::Plan plan = file.settings.plan(zero::Plan::named(file.plan));
  plan.validate({file.ranks, {.shard = file.shard_ranks}});
  return plan;
}

TEST(PlanFile, BecomesAPlan) {
  const zero::Plan plan = plan_of(example());
  EXPECT_EQ(plan, zero::Plan::zero2().bf16().accumulate(8).resident_budget(1 << 20).reduce_in(zero::Dtype::bf16));
  PlanFile gathers = example();
  gathers.plan = "zero3";
  gathers.settings.set("gather_in", "fp8");
  EXPECT_EQ(plan_of(gathers)[zero::State::parameter].wire, zero::Wire::fp8);
}

TEST(PlanFile, WhatCannotWorkTogetherIsRefused) {
  PlanFile file = example();
  file.settings.set("gather_in", "fp8");
  EXPECT_THROW(plan_of(file), zero::ConfigError);
}

TEST(PlannerProfile, GivenOnesAreWhole) {
  for (const std::string_view name : given_profiles()) {
    const Profile profile = profile_named(std::string(name));
    EXPECT_EQ(profile.name, name);
    EXPECT_EQ(profile_from_json(to_json(profile), "p.json"), profile);
    EXPECT_TRUE(profile.estimated);
    EXPECT_GE(profile.device_memory, 80e9);
    EXPECT_GT(profile.collective_bandwidth, profile.host_link_bandwidth);
    EXPECT_GT(profile.pinned_memory, 0);
    EXPECT_GT(profile.copy_bandwidth, profile.collective_bandwidth);
    EXPECT_GT(profile.collective_bandwidth, profile.network_bandwidth);
    EXPECT_GE(profile.pace(zero::Precision::fp8).matrix_flops, profile.pace(zero::Precision::bf16).matrix_flops);
    EXPECT_GT(profile.pace(zero::Precision::bf16_sr).matrix_flops, profile.pace(zero::Precision::fp32).matrix_flops);
  }
}

// That of an h100 with these keys, without those that are null.
Profile profile_with(const nlohmann::json& changes) {
  nlohmann::json json = nlohmann::json::parse(to_json(profile_named("h100")));
  json.merge_patch(changes);
  return profile_from_json(json.dump(), "p.json");
}

TEST(PlannerProfile, IsRefusedByName) {
  expect_refused("profile_refused", "p.json",
                 [](const std::string& changes) { profile_with(nlohmann::json::parse(changes)); });
  EXPECT_NO_THROW(profile_with({{"collective_seconds", 0}}));
}

TEST(PlannerProfile, RanksOfAHostNeedAWayToEachOther) {
  const auto bandwidth = [](const nlohmann::json& collective, const nlohmann::json& host_link) {
    return profile_with({{"collective_bandwidth", collective}, {"host_link_bandwidth", host_link}}).within_host();
  };
  EXPECT_EQ(bandwidth(3e11, nullptr), 3e11);
  EXPECT_EQ(bandwidth(3e11, 5e10), 3e11);
  EXPECT_EQ(bandwidth(nullptr, 5e10), 5e10);
  EXPECT_EQ(bandwidth(0, 5e10), 5e10);
}

TEST(PlannerProfile, WithoutFieldsOfDevicesIsOfAMeasuredHost) {
  const Profile older = profile_with({{"device_memory", nullptr},
                                      {"host_link_bandwidth", nullptr},
                                      {"pinned_memory", nullptr},
                                      {"estimated", nullptr}});
  EXPECT_EQ(older.device_memory, 0);
  EXPECT_EQ(older.pinned_memory, 0);
  EXPECT_EQ(older.within_host(), profile_named("h100").collective_bandwidth);
  EXPECT_FALSE(older.estimated);
}

TEST(PlannerProfile, OlderOnesHaveNoSchema) {
  EXPECT_NO_THROW(profile_with(nlohmann::json::parse(R"({"schema": null, "version": null, "threads": null,
      "device_memory": null, "host_link_bandwidth": null, "pinned_memory": null, "estimated": null,
      "fp32": {"peak_flops": null}, "bf16": {"peak_flops": null}, "fp16": {"peak_flops": null},
      "fp8": {"peak_flops": null}})")));
}

TEST(PlannerProfile, SaysWhatItDoesNotKnow) {
  const Profile profile = profile_with({{"fp16", nullptr}});
  EXPECT_TRUE(profile.knows(zero::Precision::bf16));
  EXPECT_FALSE(profile.knows(zero::Precision::fp16));
  expect_in(error_of([&] { static_cast<void>(profile.pace(zero::Precision::fp16)); }),
            {"h100", "fp16", "bench profile"});
}

TEST(PlannerProfile, ANameThatIsNoFileListsTheGivenOnes) {
  expect_in(error_of([] { profile_named("b300"); }), {"b300", "a100, h100 or h200"});
}

}  // namespace planner::planner_files_test
