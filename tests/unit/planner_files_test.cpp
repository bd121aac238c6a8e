#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "planner/plan_file.h"
#include "planner/profile.h"
#include "zero/error.h"

namespace planner::planner_files_test {

// The text of the error that `action` throws; empty where it throws none.
std::string error_of(const std::function<void()>& action) {
  try {
    action();
    return {};
  } catch (const zero::ConfigError& error) {
    return error.what();
  }
}

void expect_in(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* each : words) EXPECT_NE(text.find(each), std::string::npos) << each << " in: " << text;
}

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
          .seq = 4096};
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

std::string plan_file_error(const char* text) {
  return error_of([&] { plan_file_from_json(text, "x.json"); });
}

TEST(PlanFile, ErrorsNameFileAndKey) {
  expect_in(plan_file_error(R"({"plan": "zero1", "rank": 4})"), {"x.json", "\"rank\"", "not known"});
  expect_in(plan_file_error(R"({"plan": "zero1", "ranks": "4"})"), {"x.json", "\"ranks\"", "\"4\", not an integer"});
  expect_in(plan_file_error(R"({"plan": "zero1", "ranks": 2.5})"), {"x.json", "\"ranks\"", "not an integer"});
  expect_in(plan_file_error(R"({"plan": "zero1", "ranks": 0})"), {"x.json", "\"ranks\"", "below 1"});
  expect_in(plan_file_error(R"({"plan": "zero1", "ranks": 1e10})"), {"x.json", "\"ranks\""});
  expect_in(plan_file_error(R"({"plan": "zero1", "ranks": 10000000000})"), {"x.json", "\"ranks\"", "too large"});
  expect_in(plan_file_error(R"({"plan": "zero1", "resident_budget": -1})"), {"x.json", "\"resident_budget\""});
  expect_in(plan_file_error(R"({"plan": "zero1", "reproducible": 1})"),
            {"x.json", "\"reproducible\"", "true or false"});
  expect_in(plan_file_error(R"({"plan": "zero4"})"), {"x.json", "\"plan\"", "zero4", "ddp, zero1, zero2, zero3"});
  expect_in(plan_file_error(R"({"plan": "zero1", "precision": "bf8"})"), {"x.json", "\"precision\"", "bf16-kahan"});
  expect_in(plan_file_error(R"({"ranks": 4})"), {"x.json", "\"plan\"", "missing"});
  expect_in(plan_file_error("[1]"), {"x.json", "not a JSON object"});
  expect_in(plan_file_error("{"), {"x.json", "not a JSON object"});
}

TEST(PlanFile, ErrorsSuggestWhatWasMeant) {
  expect_in(plan_file_error(R"({"plan": "zero1", "rank": 4})"), {"did you mean 'ranks'?"});
  expect_in(plan_file_error(R"({"plan": "zer3"})"), {"is \"zer3\"; did you mean 'zero3'?"});
}

TEST(PlanFile, IntegersHaveTheRangeOfWhatHoldsThem) {
  const std::string most = "9223372036854775807", beyond = "9223372036854775808";
  const auto with = [](const std::string& batch) { return R"({"plan": "zero1", "batch": )" + batch + "}"; };
  EXPECT_EQ(plan_file_from_json(with(most), "x.json").batch, std::numeric_limits<std::int64_t>::max());
  expect_in(plan_file_error(with(beyond).c_str()), {"x.json", "\"batch\" is 9223372036854775808", "too large"});
  expect_in(plan_file_error(with("-" + beyond).c_str()), {"x.json", "\"batch\" is -9223372036854775808", "below 1"});
  for (const char* larger : {"18446744073709551615", "18446744073709551616", "-9223372036854775809"})
    expect_in(plan_file_error(with(larger).c_str()), {"x.json", "\"batch\" is "});
  expect_in(plan_file_error(R"({"plan": "zero1", "ranks": 2147483648})"), {"x.json", "\"ranks\"", "2147483647"});
}

TEST(PlanFile, OlderOnesHaveNoSchemaAndNewerOnesAreRefused) {
  EXPECT_NE(to_json(example()).find("\"schema\": \"zero.plan-file/1\""), std::string::npos);
  const auto with = [](const char* schema) {
    return R"({"schema": )" + std::string(schema) + R"(, "version": "9.8.7", "plan": "zero1"})";
  };
  EXPECT_EQ(plan_file_from_json(with("\"zero.plan-file/1\""), "x.json").plan, "zero1");
  expect_in(plan_file_error(with("\"zero.plan-file/2\"").c_str()),
            {"x.json: \"schema\" is \"zero.plan-file/2\", newer than the zero.plan-file/1", "use zero 9.8.7"});
  for (const char* other :
       {"\"zero.profile/1\"", "\"zero.plan-file/\"", "\"zero.plan-file/1.5\"", "\"zero.plan-file/0\""})
    expect_in(plan_file_error(with(other).c_str()), {"x.json: \"schema\" is ", "not zero.plan-file/1"});
  expect_in(plan_file_error(with("1").c_str()), {"x.json", "\"schema\" is 1, not a string"});
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

std::string profile_error(const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json json = nlohmann::json::parse(to_json(profile_named("h100")));
  change(json);
  return error_of([&] { profile_from_json(json.dump(), "p.json"); });
}

TEST(PlannerProfile, ErrorsNameFileAndKey) {
  expect_in(profile_error([](auto& json) { json["speed"] = 1; }), {"p.json", "\"speed\"", "not known"});
  expect_in(profile_error([](auto& json) { json.erase("copy_bandwidth"); }),
            {"p.json", "\"copy_bandwidth\"", "missing"});
  expect_in(profile_error([](auto& json) { json["disk_bandwidth"] = "fast"; }),
            {"p.json", "\"disk_bandwidth\"", "number"});
  expect_in(profile_error([](auto& json) { json["network_bandwidth"] = 0; }), {"p.json", "\"network_bandwidth\""});
  expect_in(profile_error([](auto& json) { json["bf16"].erase("matrix_flops"); }),
            {"p.json", "\"bf16\"", "\"matrix_flops\"", "missing"});
  expect_in(profile_error([](auto& json) { json["fp32"]["speed"] = 1; }), {"p.json", "\"fp32\"", "\"speed\""});
  EXPECT_EQ(profile_error([](auto& json) { json["collective_seconds"] = 0; }), "");
}

TEST(PlannerProfile, WhatIsOfDevicesIsChecked) {
  for (const char* key : {"device_memory", "host_link_bandwidth", "pinned_memory", "collective_bandwidth"})
    expect_in(profile_error([&](auto& json) { json[key] = -1; }), {"p.json", key, "below 0"});
  for (const char* key : {"device_memory", "pinned_memory"})
    expect_in(profile_error([&](auto& json) { json[key] = 1e19; }), {"p.json", key, "too large"});
  expect_in(profile_error([](auto& json) { json["device_memory"] = "80GB"; }), {"\"device_memory\"", "not a number"});
  expect_in(profile_error([](auto& json) { json["estimated"] = 1; }), {"\"estimated\"", "not true or false"});
}

TEST(PlannerProfile, RanksOfAHostNeedAWayToEachOther) {
  const auto with = [](const nlohmann::json& links) {
    nlohmann::json json = nlohmann::json::parse(to_json(profile_named("h100")));
    for (const char* key : {"collective_bandwidth", "host_link_bandwidth"}) json.erase(key);
    json.update(links);
    return json.dump();
  };
  const auto bandwidth = [&](const nlohmann::json& links) {
    return profile_from_json(with(links), "p.json").within_host();
  };
  EXPECT_EQ(bandwidth({{"collective_bandwidth", 3e11}}), 3e11);
  EXPECT_EQ(bandwidth({{"collective_bandwidth", 3e11}, {"host_link_bandwidth", 5e10}}), 3e11);
  EXPECT_EQ(bandwidth({{"host_link_bandwidth", 5e10}}), 5e10);
  EXPECT_EQ(bandwidth({{"collective_bandwidth", 0}, {"host_link_bandwidth", 5e10}}), 5e10);
  for (const nlohmann::json& none : {nlohmann::json::object(), nlohmann::json{{"collective_bandwidth", 0}}})
    expect_in(error_of([&] { profile_from_json(with(none), "p.json"); }),
              {"p.json: \"collective_bandwidth\" is missing or 0", "host_link_bandwidth"});
}

TEST(PlannerProfile, WithoutFieldsOfDevicesIsOfAMeasuredHost) {
  nlohmann::json json = nlohmann::json::parse(to_json(profile_named("h100")));
  for (const char* key : {"device_memory", "host_link_bandwidth", "pinned_memory", "estimated"}) json.erase(key);
  const Profile older = profile_from_json(json.dump(), "p.json");
  EXPECT_EQ(older.device_memory, 0);
  EXPECT_EQ(older.pinned_memory, 0);
  EXPECT_EQ(older.within_host(), profile_named("h100").collective_bandwidth);
  EXPECT_FALSE(older.estimated);
}

TEST(PlannerProfile, OlderOnesHaveNoSchemaAndNewerOnesAreRefused) {
  const auto erased = [](auto& json) {
    for (const char* key :
         {"schema", "version", "threads", "device_memory", "host_link_bandwidth", "pinned_memory", "estimated"})
      json.erase(key);
    for (const char* precision : {"fp32", "bf16", "fp16", "fp8"}) json[precision].erase("peak_flops");
  };
  EXPECT_EQ(profile_error(erased), "");
  expect_in(profile_error([](auto& json) { json["schema"] = "zero.profile/2"; }),
            {"p.json: \"schema\" is \"zero.profile/2\", newer than the zero.profile/1"});
  expect_in(profile_error([](auto& json) { json["schema"] = "zero.report/1"; }), {"not zero.profile/1"});
}

TEST(PlannerProfile, SaysWhatItDoesNotKnow) {
  nlohmann::json json = nlohmann::json::parse(to_json(profile_named("h100")));
  json.erase("fp16");
  const Profile profile = profile_from_json(json.dump(), "p.json");
  EXPECT_TRUE(profile.knows(zero::Precision::bf16));
  EXPECT_FALSE(profile.knows(zero::Precision::fp16));
  expect_in(error_of([&] { static_cast<void>(profile.pace(zero::Precision::fp16)); }),
            {"h100", "fp16", "bench profile"});
}

TEST(PlannerProfile, ANameThatIsNoFileListsTheGivenOnes) {
  expect_in(error_of([] { profile_named("b300"); }), {"b300", "a100, h100 or h200"});
}

}  // namespace planner::planner_files_test
