// What is written as JSON is what docs/json.md says, key by key.
#include <gtest/gtest.h>

#include "cli/options/recipe.h"
#include "cli/report/report.h"
#include "documented.h"
#include "planner/answer_json.h"
#include "planner/plan_file.h"
#include "planner/profile.h"
#include "zero/error.h"

namespace json_schema_test {

using documented::Json;
using documented::Schema;

Schema schema(const std::string& name) {
  return {ZERO_SOURCE_DIR "/docs/json.md", name};
}

cli::RunResult run_of(const std::string& optimizer, double lr) {
  cli::RunResult run;
  run.plan = "zero1";
  run.optimizer_name = optimizer;
  run.lr = lr;
  run.precision = "bf16";
  run.losses = {3, std::numeric_limits<double>::quiet_NaN()};
  run.grad_norms = {1, 2};
  run.evaluations = {{2, 3.5}};
  run.collectives["all_gather"] = 5;
  run.process = {{"heap", 7}};
  return run;
}

cli::Report report_of(std::vector<cli::RunResult> runs) {
  cli::Report report;
  report.model = "micro";
  report.command = "zero compare";
  report.precision = "bf16";
  cli::RunOptions options;
  options.seed = 18446744073709551615U;
  options.settings = {{"reproducible", true}, {"reduce_in", "bf16"}, {"resident_budget", std::int64_t{9}}};
  report.setting = cli::setting_of(options);
  report.runs = std::move(runs);
  return report;
}

// What comes with a timeline is recorded in runs, see procs/json_test.cpp.
TEST(JsonSchema, OfReports) {
  Schema documented = schema("zero.report/2");
  cli::RunResult on_disk = run_of("adamw", 1e-3);
  on_disk.wire.codes = {{.state = "parameter", .codec = "int8", .within_host = {4, 4}, .across_hosts = {2, 2}}};
  on_disk.tiers = {{.tier = "disk", .state = "optimizer", .held = {8, 8}, .read = {8, cli::kUnmeasured}}};
  on_disk.recomputation = {
      .budget = 5, .unlimited = 9, .peak = 5, .planned = 4, .operators = 3, .again = 2, .share = .1};
  documented.check(Json::parse(to_json(report_of({run_of("adamw", 1e-3), on_disk}))));
  EXPECT_EQ(documented.missing("runs[].timeline"), "");
}

TEST(JsonSchema, ReportsHaveWhatTheirRunsHaveInCommon) {
  const Json same = Json::parse(to_json(report_of({run_of("adamw", 1e-3), run_of("adamw", 1e-3)})));
  EXPECT_EQ(same.at("lr"), 1e-3);
  EXPECT_EQ(same.at("optimizer"), "adamw");
  EXPECT_EQ(same.at("seed"), 18446744073709551615U);
  const Json apart = Json::parse(to_json(report_of({run_of("adamw", 1e-3), run_of("sgd", 0.5)})));
  EXPECT_FALSE(apart.contains("lr") || apart.contains("optimizer"));
  EXPECT_EQ(apart.at("runs").at(1).at("lr"), 0.5);
}

TEST(JsonSchema, ReportsAreReadAsTheyWereWritten) {
  cli::RunResult whole = run_of("adamw", 1e-3);
  whole.tiers = {{.tier = "disk", .state = "optimizer", .held = {8, 8}, .read = {8, cli::kUnmeasured}}};
  whole.wire.codes = {{.state = "parameter", .codec = "int8", .within_host = {4, 4}, .across_hosts = {2, 2}}};
  whole.recomputation = {.budget = 5, .unlimited = 9, .peak = 5, .planned = 4, .operators = 3, .again = 2, .share = .1};
  whole.predicted_seconds = 2;
  whole.profile = "mine";
  whole.timeline["samples"] = {1, 2};
  const cli::Report report = report_of({whole, run_of("adamw", 1e-3)});
  const cli::Report read = report_of(cli::runs_from_json(to_json(report)));
  EXPECT_EQ(to_json(read), to_json(report));
  EXPECT_EQ(read.runs.front().lr, 1e-3);
  Json newer = Json::parse(to_json(report));
  newer["schema"] = "zero.report/3";
  EXPECT_THROW(cli::runs_from_json(newer.dump()), zero::ConfigError);
}

planner::Answer answer_of(std::int64_t parameters, std::optional<std::int64_t> memory, std::int64_t batch,
                          std::optional<std::int64_t> below = {}, double budget = 0, bool chooses = false) {
  planner::Request request{
      .shape = planner::shape_of(parameters),
      .ranks = 8,
      .device_memory = memory,
      .host_memory = below,
      .disk_space = below,
      .chooses_activations = chooses,
      .batch = batch,
      .seq = 512,
      .profile = planner::profile_named("h100"),
      .plans = {zero::Plan::ddp().bf16(), zero::Plan::zero3().bf16(), zero::Plan::zeropp().bf16()}};
  for (zero::Plan& plan : request.plans)
    if (budget > 0) plan = plan.activation_budget({.share = budget});
  if (below)
    for (zero::Plan& plan : request.plans) plan = plan.offload(zero::State::optimizer, zero::Tier::disk);
  planner::Answer answer = planner::answer(std::move(request), "config.json", "adamw");
  answer.profile_file = "profile.json";
  answer.command = "zero plan";
  answer.deepspeed.emplace().taken = {"a"};
  return answer;
}

TEST(JsonSchema, OfPlans) {
  Schema documented = schema("zero.plan/1");
  documented.check(Json::parse(to_json(answer_of(1'000'000'000, std::nullopt, 4))));
  documented.check(Json::parse(to_json(answer_of(1'000'000'000, 20'000'000'000, 64))));
  documented.check(Json::parse(to_json(answer_of(1'000'000'000, 20'000'000'000, 4, 1'000'000))));
  documented.check(Json::parse(to_json(answer_of(1'000'000'000, std::nullopt, 4, {}, .75))));
  documented.check(Json::parse(to_json(answer_of(1'000'000'000, 10'000'000'000, 64, {}, 0, true))));
  EXPECT_EQ(documented.missing("plans[].excess_host_bytes"), "");
}

TEST(JsonSchema, OfPlanFiles) {
  Schema documented = schema("zero.plan-file/1");
  documented.check(Json::parse(to_json(planner::PlanFile{})));
  EXPECT_EQ(documented.missing(), "");
}

TEST(JsonSchema, OfProfiles) {
  Schema documented = schema("zero.profile/1");
  documented.check(Json::parse(to_json(planner::profile_named("h100"))));
  EXPECT_EQ(documented.missing(), "");
}

}  // namespace json_schema_test
