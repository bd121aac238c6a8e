// What runs of the program zero write down, and what they refuse before they start.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "procs/zero_program.h"

namespace runs_test {

using nlohmann::json;
using procs::contains;
using procs::Folder;
using procs::joined;
using procs::kZero;
using procs::Result;
using procs::run;
using procs::Words;
using procs::zero;

std::int64_t bytes(const json& value) {
  return value.get<std::int64_t>();
}

// A step and nothing else: from the first forward to the end of the step, with all that is held from its start on.
void expect_timeline_of_a_step(const json& run) {
  const json& timeline = run.at("timeline");
  const json& phases = timeline.at("phases");
  ASSERT_EQ(phases.size(), 3u) << phases;
  const double end = phases.at(2).at("end");
  for (const char* phase : {"forward", "backward", "step"}) {
    const auto named = [&](const json& each) { return each.at("phase") == phase; };
    EXPECT_EQ(std::count_if(phases.begin(), phases.end(), named), 1) << phase;
  }
  for (const json& sample : timeline.at("samples")) EXPECT_LE(sample.at(0).get<double>(), end);
  const json& first = timeline.at("samples").at(0);
  EXPECT_EQ(first.at(0), 0.0);
  EXPECT_EQ(first.at(1), run.at("state_bytes").at("parameter").at("measured"));
  EXPECT_EQ(first.at(3), run.at("state_bytes").at("optimizer").at("measured"));
}

TEST(Train, WritesTheTimelineThatATraceOrAPageAsksFor) {
  const Folder folder;
  for (const Words& ranks : {Words{}, Words{"--ranks", "2"}}) {
    const Words outputs{
        "--steps",           "3",      "--eval-every",    "3", "--trace", folder.path("trace"), "--html",
        folder.path("page"), "--json", folder.path("out")};
    const Result result = run(zero(joined(joined({"train"}, folder.small(outputs)), ranks)));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_GT(folder.document("trace").at("traceEvents").size(), 10u);
    EXPECT_TRUE(contains(procs::read_all(folder.path("page")), "\"timeline\""));
    expect_timeline_of_a_step(folder.document("out").at("runs").at(0));
  }
}

TEST(Train, MeasuresActivationsOnOneRank) {
  const Folder folder;
  const Words command = joined({"train"}, folder.small({"--steps", "3", "--json", folder.path("out")}));
  ASSERT_EQ(run(zero(command)).code, 0);
  const json with = folder.document("out").at("runs").at(0);
  for (const char* what : {"activation_bytes", "peak"}) {
    const double predicted = with.at(what).at("predicted"), measured = with.at(what).at("measured");
    EXPECT_NEAR(predicted / measured, 1, 0.03) << what;
  }
  const Result result = run(zero(command), {{"ZERO_ARENA", "0"}});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "-  without the arena\n")) << result.out;
  const json without = folder.document("out").at("runs").at(0);
  EXPECT_TRUE(without.at("activation_bytes").at("measured").is_null());
  EXPECT_TRUE(without.at("peak").at("measured").is_null());
}

// A process holds at least what the ledger does, in whatever process a plan comes to run as the second or the third.
TEST(Compare, MeasuresAPeakOfTheProcessForEachRun) {
  const Folder folder;
  const Words compare{"compare", "--plans", "zero3,ddp,zero2,zero3"};
  const Result result = run(zero(joined(
      {"launch", "-n", "2", kZero}, joined(compare, folder.small({"--steps", "2", "--json", folder.path("out")})))));
  ASSERT_EQ(result.code, 0) << result.err;
  const json report = folder.document("out");
  for (const json& run : report.at("runs"))
    EXPECT_GT(bytes(run.at("peak_bytes")), bytes(run.at("peak").at("measured")));
  EXPECT_EQ(report.at("runs").size(), 4u);
}

TEST(Train, RecordsACommandThatRepeatsIt) {
  const Folder folder;
  const Words options = folder.small({"--steps", "2", "--plan", "zero2", "--json", folder.path("it's")});
  const auto losses_of = [&] { return folder.document("it's").at("runs").at(0).at("losses"); };
  for (const Words& start : {zero({"train", "--ranks", "2"}), zero({"launch", "-n", "2", kZero, "train"})}) {
    ASSERT_EQ(run(joined(start, options)).code, 0);
    const json losses = losses_of();
    const std::string command = folder.document("it's").at("command");
    EXPECT_TRUE(contains(command, "--ranks 2")) << command;
    std::filesystem::remove(folder.path("it's"));
    const std::string zero_of_test = "zero() { '" + kZero + "' \"$@\"; }; ";
    ASSERT_EQ(run({"bash", "-c", zero_of_test + command}).code, 0) << command;
    EXPECT_EQ(losses_of(), losses);
    EXPECT_EQ(folder.document("it's").at("ranks"), 2);
  }
}

struct Divergence {
  const char* option;
  const char* first;
  const char* second;
};

class Diverges : public testing::TestWithParam<Divergence> {};

// Two ranks that were started with another value each.
TEST_P(Diverges, IsToldOnEveryRank) {
  const Folder folder;
  std::ofstream(folder.path("other")) << procs::read_all(folder.path("text")) << "and more";
  const auto [option, first, second] = GetParam();
  const std::string value = std::string("$([ $RANK = 0 ] && echo '") + first + "' || echo '" + second + "')";
  std::string command = "cd " + folder.path("") + " && '" + kZero + "' train --plan ddp --steps 2 --model micro";
  for (const auto& [name, usual] : {std::pair("--data", "text"), std::pair("--seq", "24"), std::pair("--batch", "2")})
    if (std::string(name) != option) command += std::string(" ") + name + " " + usual;
  const Result result =
      run(zero({"launch", "-n", "2", "--grace", "3600", "bash", "-c", command + " " + option + " " + value}));
  EXPECT_EQ(result.code, 2);
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_TRUE(
        contains(procs::said_by(rank, result.err), std::string(option) + " is not the same on all ranks: rank 0 has "))
        << result.err;
}

INSTANTIATE_TEST_SUITE_P(Options, Diverges,
                         testing::Values(Divergence{"--schedule", "cosine", "linear"}, Divergence{"--batch", "2", "4"},
                                         Divergence{"--seq", "24", "32"}, Divergence{"--data", "text", "other"},
                                         Divergence{"--warmup", "1", "2"}, Divergence{"--eval-every", "0", "1"},
                                         Divergence{"--accumulate", "1", "2"}),
                         [](const auto& tested) {
                           std::string name = tested.param.option + 2;
                           std::erase(name, '-');
                           return name;
                         });

TEST(Train, RefusesWhatTheHostHasNoMemoryFor) {
  const Result result = run(zero({"train", "--model", "70b", "--ranks", "2"}));
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(result.err.starts_with("zero: 2 ranks of zero3 need ")) << result.err;
  for (const char* said : {"GB each ", " are available, by ", "this fits: --model "})
    EXPECT_TRUE(contains(result.err, said)) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

}  // namespace runs_test
