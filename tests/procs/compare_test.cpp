// `zero compare`: the same losses under every plan, and what runs held and received beside what was predicted.
#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "procs/zero_program.h"

namespace compare_test {

using nlohmann::json;
using procs::contains;
using procs::Folder;
using procs::joined;
using procs::kZero;
using procs::Result;
using procs::run;
using procs::Variables;
using procs::Words;
using procs::zero;

void expect_as_predicted(const json& bytes) {
  EXPECT_GT(bytes.at("predicted").get<std::int64_t>(), 0);
  EXPECT_EQ(bytes.at("predicted"), bytes.at("measured"));
}

void expect_complete(const json& report, int ranks, std::size_t steps) {
  EXPECT_EQ(report.at("ranks"), ranks);
  EXPECT_GT(report.at("parameters").get<std::int64_t>(), 0);
  EXPECT_EQ(report.at("runs").size(), 4u);
  for (const json& run : report.at("runs")) {
    EXPECT_EQ(run.at("losses").size(), steps);
    EXPECT_EQ(run.at("losses"), report.at("runs").at(0).at("losses")) << run.at("plan");
    for (const char* state : {"parameter", "gradient", "optimizer"})
      expect_as_predicted(run.at("state_bytes").at(state));
    const json& wire = run.at("wire_bytes_per_step");
    expect_as_predicted(wire);
    EXPECT_EQ(wire.at("uneven"), false);
    EXPECT_EQ(wire.at("in_place").at("measured") > 0, run.at("plan") == "zero3") << run.at("plan");
    for (const char* cost : {"peak_bytes", "step_seconds", "tokens_per_second"})
      EXPECT_GT(run.at(cost).get<double>(), 0);
  }
}

std::int64_t state_bytes(const json& run) {
  std::int64_t sum = 0;
  for (const json& bytes : run.at("state_bytes")) sum += bytes.at("measured").get<std::int64_t>();
  return sum;
}

TEST(Compare, GivesTheSameLossesAndThePredictedBytes) {
  const Folder folder;
  const Result result =
      run(zero(joined({"compare", "--ranks", "4"}, folder.small({"--steps", "3", "--json", folder.path("out")}))));
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  EXPECT_TRUE(contains(result.out, "losses identical: yes\n")) << result.out;
  const json report = folder.document("out");
  expect_complete(report, 4, 3);
  EXPECT_EQ(report.at("precision"), "fp32");
  EXPECT_LE(state_bytes(report.at("runs").at(3)), 0.26 * state_bytes(report.at("runs").at(0)));
}

// What is on disk, and what a step reads and writes there, is what was predicted.
TEST(Compare, HoldsTiersAgainstTheirPrediction) {
  for (const char* offload : {"optimizer=disk,gradient=disk", "optimizer=disk:0.5,gradient=disk"}) {
    const Folder folder;
    const Result result = run(zero(joined({"compare", "--ranks", "2", "--plans", "zero2,zero3", "--precision", "bf16",
                                           "--offload", offload, "--disk", folder.path("")},
                                          folder.small({"--steps", "3", "--json", folder.path("out")}))));
    EXPECT_EQ(result.code, 0) << result.err << result.out;
    EXPECT_TRUE(contains(result.out, "  read from disk each step")) << result.out;
    EXPECT_TRUE(contains(result.out, "  written to disk each step")) << result.out;
    EXPECT_LE(procs::widest_line(result.out), 100U) << result.out;
    for (const json& each : folder.document("out").at("runs")) {
      ASSERT_EQ(each.at("tiers").size(), 2u) << each.at("plan");
      for (const json& tier : each.at("tiers")) {
        for (const char* figure : {"bytes", "read_per_step", "written_per_step"}) expect_as_predicted(tier.at(figure));
        EXPECT_EQ(tier.at("uneven"), false);
      }
    }
  }
}

// As on one host, and on two as far as the ranks can tell: then only what goes across groups crosses.
TEST(Compare, OfShardGroupsGivesTheLossesWithoutThem) {
  const Folder folder;
  const auto report_of = [&](const Words& more, const Variables& surroundings) {
    const Result result = run(
        zero(joined(joined({"compare", "--ranks", "4"}, folder.small({"--steps", "3", "--json", folder.path("out")})),
                    more)),
        surroundings);
    EXPECT_EQ(result.code, 0) << result.err << result.out;
    EXPECT_TRUE(contains(result.out, "losses identical: yes\n")) << result.out;
    return folder.document("out");
  };
  const json flat = report_of({}, {});
  for (const Variables& hosts : {Variables{}, Variables{{"ZERO_RANKS_PER_HOST", "2"}}}) {
    const json groups = report_of({"--shard-ranks", "2"}, hosts);
    EXPECT_EQ(groups.at("shard_ranks"), 2);
    ASSERT_EQ(groups.at("runs").size(), 6U);
    std::map<std::string, std::int64_t> across;
    for (const json& each : groups.at("runs")) {
      EXPECT_EQ(each.at("losses"), flat.at("runs").at(0).at("losses"));
      const json& wire = each.at("wire_bytes_per_step");
      EXPECT_EQ(wire.at("predicted"), wire.at("measured"));
      for (const char* link : {"within_host", "across_hosts"})
        EXPECT_EQ(wire.at(link).at("predicted"), wire.at(link).at("measured")) << link;
      across[each.at("plan")] = wire.at("across_hosts").at("measured");
    }
    EXPECT_EQ(across["hybrid"] > 0, !hosts.empty());
    EXPECT_EQ(across["hybrid"] < across["zero3"], !hosts.empty());
  }
}

// Of steps that take an update over, and of those that have none to take over: the first, and those behind evaluations.
TEST(Compare, PredictsWhatEachStepOfADelayedUpdateSends) {
  const Folder folder;
  const Words delayed{"compare",   "--ranks",        "2",      "--plans",      "ddp,zero3", "--delay-update",
                      "--offload", "optimizer=disk", "--disk", folder.path("")};
  for (const Words& evaluated : {Words{}, Words{"--eval-every", "2"}}) {
    const Result result =
        run(zero(joined(joined(delayed, folder.small({"--steps", "6", "--json", folder.path("out")})), evaluated)));
    EXPECT_EQ(result.code, 0) << result.err << result.out;
    for (const json& each : folder.document("out").at("runs")) {
      const json& wire = each.at("wire_bytes_per_step");
      EXPECT_FALSE(wire.at("uneven"));
      EXPECT_EQ(wire.at("predicted"), wire.at("measured"));
    }
  }
}

TEST(Compare, RunsUnderALauncherToo) {
  const Folder folder;
  const Result result = run(zero(joined({"launch", "--no-prefix", "-n", "2", kZero, "compare", "--precision", "bf16"},
                                        folder.small({"--steps", "2", "--json", folder.path("out")}))));
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  EXPECT_TRUE(contains(result.out, "losses identical: yes\n")) << result.out;
  expect_complete(folder.document("out"), 2, 2);
}

TEST(Compare, SaysWhichPlansAccumulateInAnotherOrder) {
  const Folder folder;
  const auto options = folder.small({"--steps", "3", "--accumulate", "4", "--ranks", "2"});
  const Result running = run(zero(joined({"compare"}, options)));
  EXPECT_EQ(running.code, 0) << running.err << running.out;
  EXPECT_FALSE(contains(running.out, "zero1 differs")) << running.out;
  const Result tree = run(zero(joined({"compare", "--reproducible"}, options)));
  EXPECT_EQ(tree.code, 0) << tree.err << tree.out;
  EXPECT_TRUE(contains(tree.out, "losses identical: yes\n")) << tree.out;
}

// The rows of a table of optimizers: after an empty line, up to the next.
std::vector<std::vector<std::string>> rows(const std::string& output, int number = 0) {
  std::size_t begin = output.find("\n\n");
  for (; number > 0; --number) begin = output.find("\n\n", begin + 2);
  std::istringstream lines(output.substr(begin + 2));
  std::vector<std::vector<std::string>> result;
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && !line.empty()) {
    std::istringstream words(line);
    result.emplace_back(std::istream_iterator<std::string>(words), std::istream_iterator<std::string>());
  }
  return result;
}

TEST(CompareOptimizers, ShowsThePredictedBytesOfEach) {
  const Folder folder;
  const Result result = run(zero({"compare", "--optimizers", "all", "--model", "micro", "--ranks", "2", "--steps", "2",
                                  "--json", folder.path("out")}));
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  const json runs = folder.document("out").at("runs");
  const auto table = rows(result.out), speed = rows(result.out, 1);
  ASSERT_EQ(table.size(), runs.size()) << result.out;
  ASSERT_EQ(speed.size(), runs.size()) << result.out;
  EXPECT_LE(procs::widest_line(result.out), 100U) << result.out;
  for (std::size_t i = 0; i < table.size(); ++i) {
    ASSERT_EQ(table[i].size(), 5u) << result.out;
    ASSERT_EQ(speed[i].size(), 4u) << result.out;
    EXPECT_EQ(table[i][0], runs[i].at("optimizer"));
    EXPECT_EQ(table[i][1], table[i][2]) << table[i][0];
    EXPECT_EQ(table[i][3], table[i][4]) << table[i][0];
    EXPECT_EQ(speed[i][0], runs[i].at("optimizer"));
    EXPECT_GT(std::stod(speed[i][1]), 0) << table[i][0];
    EXPECT_EQ(runs[i].at("plan"), "zero3");
    EXPECT_EQ(runs[i].at("precision"), "fp32");
  }
}

TEST(CompareOptimizers, TrainsEachInEachPrecision) {
  const Folder folder;
  const Result result = run(zero(joined({"compare", "--optimizers", "adamw,sgd", "--precisions", "fp32,bf16"},
                                        folder.small({"--ranks", "2", "--steps", "2", "--json", folder.path("out")}))));
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  EXPECT_TRUE(contains(result.err, "sgd bf16: 2 steps")) << result.err;
  const json report = folder.document("out");
  const std::vector<procs::Words> names{{"adamw", "fp32"}, {"adamw", "bf16"}, {"sgd", "fp32"}, {"sgd", "bf16"}};
  const auto table = rows(result.out);
  ASSERT_EQ(table.size(), names.size()) << result.out;
  EXPECT_FALSE(report.contains("precision"));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const json& run = report.at("runs").at(i);
    EXPECT_EQ((procs::Words{table[i].at(0), table[i].at(1)}), names[i]) << result.out;
    EXPECT_EQ((procs::Words{run.at("optimizer"), run.at("precision")}), names[i]);
    EXPECT_GT(run.at("update_seconds"), 0);
    EXPECT_GT(run.at("update_bytes"), 0);
  }
}

TEST(CompareOptimizers, TakesTheFirstPlanAndALauncher) {
  const Folder folder;
  const Result result =
      run(zero(joined({"launch", "--no-prefix", "-n", "2", kZero, "compare", "--optimizers", "adamw,sgd"},
                      folder.small({"--plans", "zero1,ddp", "--steps", "2", "--json", folder.path("out")}))));
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  const json runs = folder.document("out").at("runs");
  ASSERT_EQ(runs.size(), 2u);
  for (const json& run : runs) EXPECT_EQ(run.at("plan"), "zero1");
  EXPECT_EQ(runs[1].at("optimizer"), "sgd");
  EXPECT_EQ(runs[1].at("state_bytes").at("optimizer").at("measured"), 0);
}

}  // namespace compare_test
