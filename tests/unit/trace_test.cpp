// Timelines as trace events.
#include "cli/report/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "zero/error.h"

namespace cli::trace_test {

using Json = nlohmann::ordered_json;

const char* const kTimeline = R"({
  "owners": ["parameter", "gradient", "gathered"],
  "samples": [[0, 100, 0, 0], [0.001, 100, 0, 40], [0.0025, 100, 0, 0]],
  "phases": [{"phase": "forward", "begin": 0, "end": 0.002}, {"phase": "backward", "begin": 0.002, "end": 0.0025}],
  "activities": [
    {"name": "forward", "unit": "", "thread": "main", "begin": 0, "end": 0.002},
    {"name": "gather", "unit": "model.layers.0", "thread": "exchange", "begin": 0.0005, "end": 0.00075},
    {"name": "backward", "unit": "", "thread": "main", "begin": 0.002, "end": 0.0025}]})";

Json report(const std::vector<std::string>& plans) {
  Json runs = Json::array();
  for (const std::string& plan : plans)
    runs.push_back({{"plan", plan}, {"optimizer", "adamw"}, {"timeline", Json::parse(kTimeline)}});
  return {{"ranks", 2}, {"runs", runs}};
}

Json events_of(const Json& report, const std::string& kind, int process = 1) {
  Json found = Json::array();
  const Json trace = Json::parse(chrome_trace(report.dump()));
  for (const Json& event : trace.at("traceEvents"))
    if (event.at("ph") == kind && event.at("pid") == process) found.push_back(event);
  return found;
}

std::map<int, std::string> threads(const Json& report, int process = 1) {
  std::map<int, std::string> names;
  for (const Json& event : events_of(report, "M", process))
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
  return names;
}

TEST(Trace, HasAProcessForEachRun) {
  const Json two = report({"ddp", "zero3"});
  EXPECT_EQ(events_of(two, "M", 1).at(0).at("args").at("name"), "ddp, adamw, rank 0");
  EXPECT_EQ(events_of(two, "M", 2).at(0).at("args").at("name"), "zero3, adamw, rank 0");
  EXPECT_EQ(events_of(two, "X", 1).size(), events_of(two, "X", 2).size());
}

TEST(Trace, NamesTheRankThatWasTimed) {
  Json one = report({"zero3"});
  one["runs"][0]["timeline"]["rank"] = 3;
  EXPECT_EQ(events_of(one, "M").at(0).at("args").at("name"), "zero3, adamw, rank 3");
}

TEST(Trace, HasARowForPhasesAndForEachThread) {
  const std::map<int, std::string> expected{{1, "phases"}, {2, "main"}, {3, "exchange"}};
  EXPECT_EQ(threads(report({"zero3"})), expected);
}

TEST(Trace, SpansAreInMicroseconds) {
  const Json spans = events_of(report({"zero3"}), "X");
  ASSERT_EQ(spans.size(), 5U);
  const Json& gather = spans.at(3);
  EXPECT_EQ(gather.at("name"), "gather");
  EXPECT_EQ(gather.at("tid"), 3);
  EXPECT_DOUBLE_EQ(gather.at("ts"), 500);
  EXPECT_DOUBLE_EQ(gather.at("dur"), 250);
  EXPECT_EQ(gather.at("args"), Json({{"unit", "model.layers.0"}}));
}

TEST(Trace, SpansWithoutAUnitHaveNoArguments) {
  for (const Json& span : events_of(report({"zero3"}), "X"))
    EXPECT_EQ(span.contains("args"), span.at("name") == "gather");
}

TEST(Trace, CountsTheBytesOfOwnersThatHoldAny) {
  const Json counters = events_of(report({"zero3"}), "C");
  ASSERT_EQ(counters.size(), 3U);
  EXPECT_DOUBLE_EQ(counters.at(1).at("ts"), 1000);
  EXPECT_EQ(counters.at(1).at("args"), Json({{"parameter", 100}, {"gathered", 40}}));
  EXPECT_EQ(counters.at(2).at("args"), Json({{"parameter", 100}, {"gathered", 0}}));
}

TEST(Trace, LeavesOutRunsWithoutATimeline) {
  Json two = report({"ddp", "zero3"});
  two["runs"][0].erase("timeline");
  EXPECT_TRUE(events_of(two, "X", 1).empty());
  EXPECT_EQ(events_of(two, "X", 2).size(), 5U);
}

TEST(Trace, CannotBeMadeOfNothing) {
  Json old = report({"ddp"});
  old["runs"][0].erase("timeline");
  EXPECT_THROW(chrome_trace(old.dump()), zero::Error);
  EXPECT_THROW(chrome_trace("{\"runs\": []}"), zero::Error);
}

TEST(Trace, CannotBeMadeOfWhatIsNoReport) {
  EXPECT_THROW(chrome_trace("{"), zero::Error);
  EXPECT_THROW(chrome_trace("{\"ranks\": 2}"), zero::Error);
  Json shorter = report({"ddp"});
  shorter["runs"][0]["timeline"]["samples"][1] = {0.001, 100};
  EXPECT_THROW(chrome_trace(shorter.dump()), zero::Error);
}

}  // namespace cli::trace_test
