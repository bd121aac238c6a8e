// What runs cost and gave, as tables and as JSON.
#include "cli/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace cli {
namespace {

RunResult run() {
  RunResult result;
  result.plan = "zero1";
  result.losses = {3, 2};
  result.parameter = result.gradient = {400, 400};
  result.optimizer = {200, 200};
  result.wire = {.predicted = 1000, .accounted = 1000};
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

TEST(Report, WireIsAccountedForAndNotCalledMeasured) {
  const auto wire = nlohmann::json::parse(to_json(report_of(run()))).at("runs").at(0).at("wire_bytes_per_step");
  EXPECT_EQ(wire, nlohmann::json({{"predicted", 1000}, {"accounted", 1000}, {"uneven", false}}));
  EXPECT_EQ(row(run(), "wire"), "wire each step, accounted      1,000     1,000");
}

TEST(Report, StepsThatDifferAreNoAgreementThoughTheirMeanIsThePrediction) {
  RunResult result = run();
  EXPECT_TRUE(result.bytes_agree());
  result.wire.uneven = true;
  EXPECT_FALSE(result.bytes_agree());
  EXPECT_EQ(row(result, "wire"), "wire each step, accounted      1,000     1,000  differs between steps");
  const RunResult read = from_json(to_json(report_of(result))).runs.at(0);
  EXPECT_EQ(read.wire.accounted, 1000) << "the bytes are what they are";
  EXPECT_TRUE(read.wire.uneven);
  EXPECT_FALSE(read.bytes_agree());
}

TEST(Report, WireThatNoStepShowsIsNoDifference) {
  RunResult result = run();
  result.wire.accounted = 0;
  EXPECT_TRUE(result.bytes_agree());
  EXPECT_NE(row(result, "wire").find("-  every step skipped"), std::string::npos);
  result.wire.accounted = 1001;
  EXPECT_FALSE(result.bytes_agree());
  EXPECT_TRUE(row(result, "wire").ends_with("1,001  differs"));
}

}  // namespace
}  // namespace cli
