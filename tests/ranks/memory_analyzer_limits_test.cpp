// What the analyzer does not listen to, keep or take.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>

#include "zero/error.h"
#include "zero/memory_analyzer.h"

namespace zero::memory_analyzer_limits_test {

// Steps that repeat themselves are not listened to any more; one that is another is, from where it departs.
TEST(MemoryAnalyzerLimits, NamesOperatorsOfStepsLikeThoseBeforeAndUnlikeThem) {
  // What is more from when it is watched on makes a peak of the step after.
  const torch::Tensor older = torch::zeros({1000});
  MemoryAnalyzer analyzer;
  torch::nn::Linear layer(100, 100);
  const auto step = [&](std::int64_t rows) {
    layer(torch::ones({rows, 100})).relu().exp().square().sum().backward();
    layer->zero_grad();
  };
  for (int i = 0; i < 6; ++i) step(50);
  analyzer.watch(older, MemoryOwner::parameter);
  step(50);
  ASSERT_FALSE(at::hasThreadLocalCallbacks());
  const MemoryPeak small = analyzer.report().peak;
  step(500);
  const MemoryPeak large = analyzer.report().peak;
  EXPECT_GT(large.bytes, 2 * small.bytes);
  const auto names = [](const MemoryPeak& peak) {
    std::map<std::string, std::int64_t> bytes;
    for (const MemoryShare& share : peak.operators) bytes[share.name] = share.bytes;
    return bytes;
  };
  for (const char* each : {"aten::exp", "aten::pow"}) {
    EXPECT_EQ(names(small)[each], 50 * 100 * 4) << each;
    EXPECT_EQ(names(large)[each], 500 * 100 * 4) << each;
  }
  // What was the first to depart, as it was not yet listened to.
  EXPECT_EQ(names(large)[""], 500 * 100 * 4 + 4000);
  EXPECT_EQ(large.running, "aten::mul in PowBackward0");
}

// LibTorch asks for no callbacks of operators once the steps repeat themselves.
TEST(MemoryAnalyzerLimits, DoesNotListenToStepsThatRepeatThemselves) {
  for (const int micro_batches : {1, 2, 4}) {
    MemoryAnalyzer analyzer;
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(8, 16));
    torch::optim::Adam optimizer(lstm->parameters(), 1e-3);
    const auto step = [&] {
      for (int micro = 0; micro < micro_batches; ++micro) std::get<0>(lstm(torch::ones({20, 3, 8}))).sum().backward();
      optimizer.step();
      optimizer.zero_grad();
    };
    EXPECT_TRUE(at::hasThreadLocalCallbacks());
    for (int i = 0; i < 12; ++i) step();
    EXPECT_FALSE(at::hasThreadLocalCallbacks()) << micro_batches;
    torch::ones({1000}).neg();
    EXPECT_TRUE(at::hasThreadLocalCallbacks());
  }
}

TEST(MemoryAnalyzerLimits, ForgetsTensorsThatHaveEnded) {
  MemoryAnalyzer analyzer;
  for (int i = 0; i < 100; ++i) {
    torch::nn::Linear layer(8, 8);
    analyzer.watch(*layer);
    analyzer.watch(layer->weight, MemoryOwner::optimizer, "mine");
    layer(torch::ones({1, 8})).sum().backward();
    const MemoryRecord record = analyzer.record("step");
    EXPECT_EQ(of(record.owners, MemoryOwner::parameter), 8 * 4);
    EXPECT_EQ(of(record.owners, MemoryOwner::optimizer), 64 * 4);
  }
  EXPECT_EQ(analyzer.record("gone").allocated, 0);
}

TEST(MemoryAnalyzerLimits, RefusesATensorThatIsNotDefined) {
  MemoryAnalyzer analyzer;
  EXPECT_THROW(analyzer.watch(at::Tensor(), MemoryOwner::parameter), ConfigError);
}

TEST(MemoryAnalyzerLimits, KeepsSoManyTagsAndSumsUpTheRest) {
  MemoryAnalyzer analyzer;
  for (int i = 0; i < 5000; ++i) analyzer.record("step " + std::to_string(i));
  const MemoryReport report = analyzer.report();
  ASSERT_EQ(report.tags.size(), 4097u);
  EXPECT_EQ(report.tags.back().name, "(other tags)");
  EXPECT_EQ(report.tags.back().count, 5000 - 4096);
}

TEST(MemoryAnalyzerLimits, KeepsWithinBoundsOverManySteps) {
  MemoryAnalyzer analyzer;
  for (int i = 0; i < 3000; ++i) {
    const auto scope = analyzer.scope("step");
    torch::zeros({4}).neg();
  }
  const MemoryReport report = analyzer.report();
  EXPECT_EQ(report.records.size(), 1024u);
  ASSERT_EQ(report.tags.size(), 1u);
  EXPECT_EQ(report.tags[0].count, 3000);
  EXPECT_EQ(report.tags[0].peak, 32);
  EXPECT_LE(report.timeline.size(), 4096u);
}

}  // namespace zero::memory_analyzer_limits_test
