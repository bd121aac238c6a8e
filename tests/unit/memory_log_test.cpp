#include "analysis/log.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "analysis/history.h"

namespace zero::memory_log_test {

BlockOrigin forward(MemoryLog& log) {
  return {{log.number("aten::mm")}, true};
}
BlockOrigin backward(MemoryLog& log) {
  return {{log.number("aten::mm"), log.number("MmBackward0")}, false};
}
BlockOrigin other(MemoryLog& log) {
  return {{log.number("aten::randn")}, false};
}

// Addresses to talk about.
const void* block(int i) {
  static const char memory[1 << 10] = {};
  return memory + i;
}

std::int64_t sum(const OwnedBytes& owners) {
  std::int64_t total = 0;
  for (const std::int64_t bytes : owners) total += bytes;
  return total;
}

MemoryLog::Span now(MemoryLog& log) {
  return log.settle_and_close(log.open());
}

TEST(MemoryLog, TellsActivationsFromTemporariesByWhatTheyLiveThrough) {
  MemoryLog log;
  log.came(block(0), 100, forward(log));  // ends in backward
  log.came(block(1), 10, forward(log));   // ends before
  log.went(block(1));
  log.came(block(2), 1000, other(log));  // no gradients were recorded
  log.backward_began();
  log.went(block(0));
  log.settle();
  EXPECT_EQ(of(log.peak().owners, MemoryOwner::activation), 100);
  EXPECT_EQ(of(log.peak().owners, MemoryOwner::temporary), 1000);
  EXPECT_EQ(log.peak().bytes, 1100);
}

TEST(MemoryLog, WhatLivesBeyondItsStretchIsAnActivationIfGradientsWereRecorded) {
  MemoryLog log;
  log.came(block(0), 100, forward(log));
  log.came(block(1), 10, backward(log));
  const OwnedBytes owners = now(log).owners;
  EXPECT_EQ(of(owners, MemoryOwner::activation), 100);
  EXPECT_EQ(of(owners, MemoryOwner::temporary), 10);
}

TEST(MemoryLog, ThePeakIsTheSumOfWhatWasThereThen) {
  MemoryLog log;
  log.came(block(0), 5, forward(log));
  log.settle();
  log.came(block(1), 50, forward(log));
  log.came(block(2), 500, backward(log));  // the peak
  log.went(block(0));
  log.went(block(2));
  log.came(block(3), 400, forward(log));
  log.settle();
  const MemoryPeak peak = log.peak();
  EXPECT_EQ(peak.bytes, 555);
  EXPECT_EQ(peak.running, "aten::mm in MmBackward0");
  EXPECT_EQ(sum(peak.owners), 555);
  ASSERT_EQ(peak.operators.size(), 2u);
  EXPECT_EQ(peak.operators[0].name, "aten::mm in MmBackward0");
  EXPECT_EQ(peak.operators[0].bytes, 500);
  EXPECT_EQ(peak.operators[1].bytes, 55);
}

TEST(MemoryLog, AClaimThatComesLateStillNamesWhatWasThereAtThePeak) {
  MemoryLog log;
  log.came(block(0), 100, forward(log));
  log.settle();
  EXPECT_EQ(of(log.peak().owners, MemoryOwner::activation), 100);
  log.claim(block(0), 100, MemoryOwner::parameter, "layer");
  const OwnedBytes owners = now(log).owners;
  EXPECT_EQ(of(owners, MemoryOwner::parameter), 100);
  EXPECT_EQ(sum(owners), 100);
  EXPECT_EQ(of(log.peak().owners, MemoryOwner::parameter), 100);
  ASSERT_EQ(log.peak().units.size(), 1u);
  EXPECT_EQ(log.peak().units[0].name, "layer");
}

TEST(MemoryLog, TakesNoNoticeOfBlocksThatItDidNotSeeComing) {
  MemoryLog log;
  log.went(block(0));
  EXPECT_EQ(now(log).last, 0);
}

TEST(MemoryLog, OlderBlocksCountFromTheirClaimOn) {
  MemoryLog log;
  const std::int64_t number = log.claim(block(0), 100, MemoryOwner::parameter, "");
  EXPECT_EQ(now(log).last, 100);
  EXPECT_EQ(log.claim(block(0), 100, MemoryOwner::parameter, ""), number);
  EXPECT_EQ(now(log).last, 100);
  log.went(block(0), number + 1);
  EXPECT_EQ(now(log).last, 100);
  log.went(block(0), number);
  EXPECT_EQ(now(log).last, 0);
}

TEST(MemoryLog, ABlockThatComesAgainHasGoneInBetween) {
  MemoryLog log;
  log.came(block(0), 100, forward(log));
  log.came(block(0), 30, forward(log));
  EXPECT_EQ(now(log).last, 30);
}

TEST(MemoryLog, SpansOverlapAndHaveTheirOwnPeaks) {
  MemoryLog log;
  const int outer = log.open();
  log.came(block(0), 100, forward(log));
  log.went(block(0));
  const int inner = log.open();
  log.came(block(1), 10, forward(log));
  const MemoryLog::Span first = log.close(outer);
  log.came(block(2), 1, forward(log));
  const MemoryLog::Span second = log.close(inner);
  EXPECT_EQ(first.peak, 100);
  EXPECT_EQ(first.last, 10);
  EXPECT_EQ(second.first, 0);
  EXPECT_EQ(second.peak, 11);
}

TEST(MemoryLog, CountsWhatAnEngineBooks) {
  MemoryLog log;
  log.booked(MemoryOwner::parameter, "layer", 64);
  log.booked(MemoryOwner::communication, "layer", 32);
  log.booked(MemoryOwner::communication, "layer", -32);
  const MemoryLog::Span span = now(log);
  EXPECT_EQ(span.last, 64);
  EXPECT_EQ(of(span.owners, MemoryOwner::parameter), 64);
  EXPECT_EQ(log.peak().bytes, 96);
  EXPECT_EQ(log.peak().units[0].bytes, 96);
  EXPECT_EQ(log.peak().operators[0].name, "zero::Engine");
  EXPECT_EQ(log.peak().running, "zero::Engine");
  EXPECT_EQ(of(log.peak().owners, MemoryOwner::communication), 32);
}

TEST(MemoryLog, SettlesByItselfAndAddsUpOverAnyNumberOfEvents) {
  MemoryLog log;
  const int span = log.open();
  for (int i = 0; i < 300'000; ++i) {
    log.came(block(i % 512), i % 1000 + 1, forward(log));
    if (i % 3 == 0) log.went(block(i % 512));
  }
  for (int i = 0; i < 512; ++i) log.went(block(i));
  const MemoryLog::Span end = log.settle_and_close(span);
  EXPECT_EQ(end.last, 0);
  EXPECT_EQ(end.owners, OwnedBytes{});
  EXPECT_EQ(log.peak().bytes, end.peak);
  EXPECT_EQ(sum(log.peak().owners), end.peak);
  EXPECT_LE(log.timeline().size(), 4096u);
}

TEST(MemoryLog, TellsWhatWasThereBeforeAsOneSample) {
  MemoryLog log;
  log.came(block(1), 10, forward(log));
  log.begin_telling();
  for (int i = 0; i < 20; ++i) log.booked(MemoryOwner::parameter, "unit", 100);
  log.end_telling();
  log.booked(MemoryOwner::optimizer, "unit", 5);
  log.settle();
  std::vector<std::int64_t> seen;
  for (const MemorySample& sample : log.timeline()) seen.push_back(sample.allocated);
  EXPECT_EQ(seen, (std::vector<std::int64_t>{10, 2010, 2015}));
  EXPECT_EQ(log.peak().bytes, 2015);
}

TEST(MemoryLog, TakesEventsFromSeveralThreads) {
  MemoryLog log;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const void* const mine = block(t * 100 + i % 100);
        log.came(mine, 7, forward(log));
        if (i % 10 == 0) log.settle();
        log.went(mine);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(now(log).last, 0);
  EXPECT_GE(log.peak().bytes, 7);
  EXPECT_LE(log.peak().bytes, 28);
}

TEST(Timeline, KeepsTheLargestWhenSamplesAreTooMany) {
  Timeline timeline(16);
  for (int i = 0; i < 10'000; ++i) timeline.add({i * 0.001, i == 4321 ? 1'000'000 : i, {}});
  std::int64_t most = 0;
  double before = -1;
  for (const MemorySample& sample : timeline.samples()) {
    most = std::max(most, sample.allocated);
    EXPECT_GT(sample.at, before);
    before = sample.at;
  }
  EXPECT_LE(timeline.samples().size(), 16u);
  EXPECT_GE(timeline.samples().size(), 4u);
  EXPECT_EQ(most, 1'000'000);
}

TEST(Timeline, TakesAnyNumberOfSamplesOfOneMoment) {
  Timeline timeline(4);
  for (int i = 0; i < 100; ++i) timeline.add({1.0, i, {}});
  ASSERT_FALSE(timeline.samples().empty());
  EXPECT_LE(timeline.samples().size(), 4u);
}

TEST(History, AddsUpByTagAndKeepsTheNewest) {
  History history;
  for (int i = 0; i < 3000; ++i) history.add(MemoryRecord{.tag = i % 2 ? "b" : "a", .allocated = i, .peak = 5000 - i});
  MemoryReport report;
  history.fill(report);
  ASSERT_EQ(report.tags.size(), 2u);
  EXPECT_EQ(report.tags[0].name, "a");
  EXPECT_EQ(report.tags[0].count, 1500);
  EXPECT_EQ(report.tags[0].allocated, 2998);
  EXPECT_EQ(report.tags[0].peak, 5000);
  ASSERT_EQ(report.records.size(), 1024u);
  EXPECT_EQ(report.records.back().allocated, 2999);
}

TEST(MemoryReport, ShowsTagsPeakAndProcess) {
  MemoryReport report;
  report.tags = {{.name = "forward", .count = 2, .allocated = 1'500'000, .peak = 2'000'000, .change = -250'000}};
  report.peak.bytes = 2'000'000;
  report.peak.at = 0.5;
  report.peak.running = "aten::mm";
  report.peak.owners = {1'500'000, 0, 0, 500'000, 0, 0};
  report.peak.operators = {{"aten::mm", 500'000}, {"", 1'500'000}};
  report.process = {4'000'000, {{"libraries", 4'000'000}}};
  const std::string text = to_string(report);
  EXPECT_NE(text.find("forward      2      1.500  2.000"), std::string::npos) << text;
  EXPECT_NE(text.find("-0.250"), std::string::npos);
  EXPECT_NE(text.find("peak: 2.000 MB after 0.5000 s, by aten::mm"), std::string::npos) << text;
  EXPECT_NE(text.find("activation             0.500  25.0 %"), std::string::npos) << text;
  EXPECT_NE(text.find("libraries    4.000  100.0 %"), std::string::npos) << text;
}

}  // namespace zero::memory_log_test
