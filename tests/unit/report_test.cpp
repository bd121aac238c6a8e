// What runs cost and gave, as tables and as JSON.
#include "cli/report/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace cli::report_test {

RunResult run() {
  RunResult result;
  result.plan = "zero1";
  result.losses = {3, 2};
  result.parameter = result.gradient = {400, 400};
  result.optimizer = {200, 200};
  result.wire = {.predicted = 1000, .measured = 1000, .within_host = {1000, 1000}};
  return result;
}

Report report_of(const RunResult& result) {
  Report report;
  report.ranks = 2;
  report.runs = {result};
  return report;
}

// The row of a table that begins with these words.
std::string row(const RunResult& result, const std::string& words) {
  std::ostringstream out;
  print_report(out, report_of(result));
  const std::string text = out.str();
  const auto begin = text.find(words);
  return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
}

RunResult run_on_disk() {
  RunResult result = run();
  result.plan = "zero1, optimizer on disk";
  result.tiers = {
      {.tier = "disk", .state = "optimizer", .held = {200, 200}, .read = {180, 180}, .written = {170, 170}}};
  return result;
}

TEST(Report, TiersAreWhatIsThereAndWhatMovesInAStep) {
  const RunResult result = run_on_disk();
  EXPECT_TRUE(result.bytes_agree());
  EXPECT_EQ(row(result, "on disk    "), "on disk                          200       200");
  EXPECT_EQ(row(result, "read from"), "read from disk each step         180       180");
  EXPECT_EQ(row(result, "written to"), "written to disk each step        170       170");
  const RunResult read = runs_from_json(to_json(report_of(result))).at(0);
  ASSERT_EQ(read.tiers.size(), 1u);
  EXPECT_EQ(read.tiers.front().written.measured, 170);
  EXPECT_EQ(row(run(), "on "), "");
  EXPECT_EQ(to_json(report_of(run())).find("tiers"), std::string::npos) << "nothing of what is not there";
}

TEST(Report, TiersThatAreNotAsPredictedDiffer) {
  const auto ends = [](const RunResult& result, const std::string& note) {
    return row(result, "read from").ends_with(note);
  };
  RunResult result = run_on_disk();
  result.tiers.front().read.measured = 181;
  EXPECT_FALSE(result.bytes_agree());
  EXPECT_TRUE(ends(result, "  differs"));
  result = run_on_disk();
  result.tiers.front().uneven = true;
  EXPECT_FALSE(result.bytes_agree());
  EXPECT_TRUE(ends(result, "  differs between steps"));
  result = run_on_disk();
  result.tiers.front().held.measured = 0;
  EXPECT_FALSE(result.bytes_agree());
  result = run_on_disk();
  result.tiers.front().read.measured = result.tiers.front().written.measured = kUnmeasured;
  EXPECT_TRUE(result.bytes_agree()) << "no step shows it";
  EXPECT_TRUE(ends(result, "-  no step shows it"));
  EXPECT_TRUE(
      nlohmann::json::parse(to_json(report_of(result)))["runs"][0]["tiers"][0]["read_per_step"]["measured"].is_null());
}

TEST(Report, WireIsPredictedAndMeasured) {
  const auto wire = nlohmann::json::parse(to_json(report_of(run()))).at("runs").at(0).at("wire_bytes_per_step");
  const auto both = [](std::int64_t bytes) { return nlohmann::json({{"predicted", bytes}, {"measured", bytes}}); };
  EXPECT_EQ(wire, nlohmann::json({{"predicted", 1000},
                                  {"measured", 1000},
                                  {"uneven", false},
                                  {"within_host", both(1000)},
                                  {"across_hosts", both(0)},
                                  {"in_place", both(0)}}));
  EXPECT_EQ(row(run(), "wire"), "wire each step      1,000     1,000");
  for (const char* const way : {"within the host", "across hosts", "read in place"})
    EXPECT_EQ(row(run(), way), "") << "one host, nothing in common";
}

TEST(Report, SaysByWhichFiguresSecondsArePredicted) {
  RunResult result = run();
  EXPECT_TRUE(nlohmann::json::parse(to_json(report_of(result))).at("runs").at(0).at("profile").is_null());
  result.predicted_seconds = 2;
  result.profile = "mine";
  EXPECT_EQ(row(result, "the predicted seconds"), "");
  result.profile_estimated = true;
  EXPECT_EQ(row(result, "the predicted seconds"),
            "the predicted seconds are by profile mine, estimated from data sheets, not measured");
  const RunResult read = runs_from_json(to_json(report_of(result))).at(0);
  EXPECT_EQ(read.profile, "mine");
  EXPECT_TRUE(read.profile_estimated);
}

TEST(Report, ShowsTheLinksAndWhatCommonMemorySpared) {
  RunResult result = run();
  result.wire.within_host = {600, 600};
  result.wire.across_hosts = {400, 400};
  result.wire.in_place = {500, 500};
  EXPECT_TRUE(result.bytes_agree());
  EXPECT_EQ(row(result, "within the host"), "within the host        600       600");
  EXPECT_EQ(row(result, "across hosts"), "across hosts           400       400");
  EXPECT_EQ(row(result, "read in place"), "read in place          500       500");
  const RunResult read = runs_from_json(to_json(report_of(result))).at(0);
  EXPECT_EQ(read.wire.across_hosts.measured, 400);
  EXPECT_EQ(read.wire.in_place.predicted, 500);
}

TEST(Report, ShowsWhatIsInCodes) {
  RunResult result = run();
  result.wire.codes = {{.state = "parameter", .codec = "int8", .within_host = {300, 300}, .across_hosts = {200, 200}},
                       {.state = "gradient", .codec = "int4", .across_hosts = {100, 100}}};
  EXPECT_TRUE(result.bytes_agree());
  EXPECT_EQ(row(result, "of parameters in int8, across"),
            "of parameters in int8, across hosts           200       200");
  EXPECT_EQ(row(result, "of gradients in int4, within"), "") << "nothing travels there";
  const RunResult read = runs_from_json(to_json(report_of(result))).at(0);
  EXPECT_EQ(read.wire.codes.at(0).within_host.measured, 300);
  result.wire.codes[1].across_hosts.measured = 99;
  EXPECT_FALSE(result.bytes_agree());
  EXPECT_TRUE(row(result, "of gradients in int4").ends_with("99  differs"));
}

TEST(Report, TheSameSumByOtherLinksDiffers) {
  RunResult result = run();
  result.wire.within_host.measured = 900;
  result.wire.across_hosts.measured = 100;
  EXPECT_FALSE(result.bytes_agree());
  EXPECT_TRUE(row(result, "across hosts").ends_with("100  differs"));
}

TEST(Report, StepsThatDifferAreNoAgreementThoughTheirMeanIsThePrediction) {
  RunResult result = run();
  EXPECT_TRUE(result.bytes_agree());
  result.wire.uneven = true;
  EXPECT_FALSE(result.bytes_agree());
  EXPECT_EQ(row(result, "wire"), "wire each step      1,000     1,000  differs between steps");
  const RunResult read = runs_from_json(to_json(report_of(result))).at(0);
  EXPECT_EQ(read.wire.measured, 1000) << "the bytes are what they are";
  EXPECT_TRUE(read.wire.uneven);
  EXPECT_FALSE(read.bytes_agree());
}

TEST(Report, WireThatNoStepShowsIsNoDifference) {
  RunResult result = run();
  result.wire.measured = 0;
  EXPECT_TRUE(result.bytes_agree());
  EXPECT_NE(row(result, "wire").find("-  no step shows it"), std::string::npos);
  result.wire.measured = 1001;
  EXPECT_FALSE(result.bytes_agree());
  EXPECT_TRUE(row(result, "wire").ends_with("1,001  differs"));
}

}  // namespace cli::report_test
