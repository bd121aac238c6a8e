// The analyzer on programs without an engine, beside an allocator that counts by itself.
#include "zero/memory_analyzer.h"

#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "zero/error.h"

namespace zero::memory_analyzer_test {

// Counts what goes through it to the allocator that was there before, and notes the most and who asked for it then.
// For a thread of the test: others' blocks pass.
class Counting final : public c10::Allocator {
 public:
  Counting() : inner_(c10::GetCPUAllocator()) {
    self_ = this;
    c10::SetCPUAllocator(this);
    callback_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
              self_->stack_.emplace_back(function.name());
              return nullptr;
            },
            [](const at::RecordFunction&, at::ObserverContext*) { self_->stack_.pop_back(); })
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~Counting() override {
    at::removeCallback(callback_);
    c10::SetCPUAllocator(inner_);
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr block = inner_->allocate(bytes);
    void* const data = block.get();
    if (data == nullptr) return block;
    add(data, static_cast<std::int64_t>(bytes));
    block.release_context();
    return {data, data, &free, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  void start_over() {
    const std::lock_guard lock(mutex_);
    peak_ = bytes_;
  }
  std::int64_t bytes() const { return bytes_; }
  std::int64_t peak() const { return peak_; }
  // Of the operators that ran at the peak the innermost whose name has not "empty" in it.
  std::string running() const {
    for (auto each = at_peak_.rbegin(); each != at_peak_.rend(); ++each)
      if (each->find("empty") == std::string::npos) return *each;
    return {};
  }

 private:
  static void free(void* data) {
    self_->remove(data);
    self_->inner_->raw_deleter()(data);
  }
  void add(void* data, std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    sizes_[data] = bytes;
    bytes_ += bytes;
    if (bytes_ <= peak_) return;
    peak_ = bytes_;
    at_peak_ = stack_;
  }
  void remove(void* data) {
    const std::lock_guard lock(mutex_);
    bytes_ -= sizes_[data];
    sizes_.erase(data);
  }

  inline static Counting* self_ = nullptr;
  c10::Allocator* inner_;
  at::CallbackHandle callback_;
  std::mutex mutex_;
  std::map<void*, std::int64_t> sizes_;
  std::int64_t bytes_ = 0;
  std::int64_t peak_ = 0;
  std::vector<std::string> stack_;
  std::vector<std::string> at_peak_;
};

struct Net : torch::nn::Module {
  Net() {
    register_module("table", table);
    register_module("lstm", lstm);
    register_module("head", head);
  }
  torch::Tensor loss() {
    const torch::Tensor ids = torch::randint(128, {8, 33}, torch::kLong);
    const torch::Tensor logits = head(std::get<0>(lstm(table(ids.slice(1, 0, 32))))).flatten(0, 1);
    return torch::nn::functional::cross_entropy(logits, ids.slice(1, 1).flatten());
  }

  torch::nn::Embedding table{128, 32};
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(32, 64).num_layers(2).batch_first(true)};
  torch::nn::Linear head{64, 128};
};

std::int64_t bytes_of(const torch::nn::Module& module) {
  std::int64_t bytes = 0;
  for (const torch::Tensor& parameter : module.parameters()) bytes += static_cast<std::int64_t>(parameter.nbytes());
  return bytes;
}

std::int64_t sum(const OwnedBytes& owners) {
  return std::accumulate(owners.begin(), owners.end(), std::int64_t{0});
}

std::int64_t sum(const std::vector<MemoryShare>& shares) {
  std::int64_t bytes = 0;
  for (const MemoryShare& share : shares) bytes += share.bytes;
  return bytes;
}

torch::Tensor megabytes(std::int64_t count) {
  return torch::zeros({count, 250'000});
}

TEST(MemoryAnalyzer, FindsThePeakOfAnLstmAsAnAllocatorThatCounts) {
  MemoryAnalyzer analyzer;
  Counting counting;
  Net net;
  torch::optim::Adam optimizer(net.parameters(), 1e-3);
  analyzer.watch(net);
  analyzer.watch(optimizer);
  analyzer.record("set-up");
  for (int step = 0; step < 3; ++step) {
    counting.start_over();
    torch::Tensor loss = net.loss();
    EXPECT_EQ(analyzer.record("forward").peak, counting.peak());
    loss.backward();
    loss = torch::Tensor();
    analyzer.record("backward");
    optimizer.step();
    optimizer.zero_grad();
    const MemoryRecord record = analyzer.record("step");
    EXPECT_EQ(record.allocated, counting.bytes());
  }
  counting.start_over();
  const MemoryPeak before = analyzer.report().peak;
  EXPECT_EQ(sum(before.owners), before.bytes);
  const torch::Tensor large = torch::ones({1000, 1000}).mul(2).exp();
  const MemoryPeak peak = analyzer.report().peak;
  EXPECT_EQ(peak.bytes, counting.peak());
  EXPECT_EQ(peak.running, "aten::exp");
}

TEST(MemoryAnalyzer, NamesTheOperatorOfThePeakOfAStep) {
  MemoryAnalyzer analyzer;
  Counting counting;
  Net net;
  torch::optim::Adam optimizer(net.parameters(), 1e-3);
  for (int step = 0; step < 3; ++step) {
    net.loss().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  const MemoryPeak peak = analyzer.report().peak;
  EXPECT_EQ(peak.bytes, counting.peak());
  ASSERT_FALSE(peak.running.empty());
  EXPECT_EQ(peak.running.substr(0, peak.running.find(' ')), counting.running());
  EXPECT_EQ(sum(peak.operators), peak.bytes);
  EXPECT_EQ(sum(peak.units), peak.bytes);
}

TEST(MemoryAnalyzer, OwnersAreWhatTheyAreAndAddUpAtEveryRecord) {
  MemoryAnalyzer analyzer;
  Net net;
  torch::optim::Adam optimizer(net.parameters(), 1e-3);
  analyzer.watch(net);
  analyzer.watch(optimizer);
  const std::int64_t size = bytes_of(net);
  std::vector<MemoryRecord> records{analyzer.record("model")};
  torch::Tensor loss = net.loss();
  records.push_back(analyzer.record("forward"));
  loss.backward();
  records.push_back(analyzer.record("backward"));
  optimizer.step();
  records.push_back(analyzer.record("step"));
  for (const MemoryRecord& record : records) {
    EXPECT_EQ(sum(record.owners), record.allocated) << record.tag;
    EXPECT_EQ(of(record.owners, MemoryOwner::parameter), size) << record.tag;
  }
  EXPECT_EQ(records[0].allocated, size);
  EXPECT_GT(of(records[1].owners, MemoryOwner::activation), 0);
  EXPECT_EQ(of(records[1].owners, MemoryOwner::gradient), 0);
  EXPECT_EQ(of(records[2].owners, MemoryOwner::gradient), size);
  EXPECT_LT(of(records[2].owners, MemoryOwner::activation), of(records[1].owners, MemoryOwner::activation));
  EXPECT_EQ(of(records[3].owners, MemoryOwner::optimizer), 2 * size);
  EXPECT_EQ(records[3].change, records[3].allocated - records[2].allocated);
}

TEST(MemoryAnalyzer, FindsGradientsAndActivationsThatAreGoneAtTheRecord) {
  MemoryAnalyzer analyzer;
  torch::nn::Linear layer(torch::nn::LinearOptions(1000, 1000).bias(false));
  analyzer.watch(*layer);
  layer->forward(torch::ones({500, 1000})).sum().backward();
  layer->zero_grad();
  const MemoryRecord record = analyzer.record("step");
  EXPECT_EQ(record.allocated, 4'000'000);
  const MemoryPeak peak = analyzer.report().peak;
  EXPECT_EQ(of(peak.owners, MemoryOwner::parameter), 4'000'000);
  EXPECT_EQ(of(peak.owners, MemoryOwner::gradient), 4'000'000);
  EXPECT_GE(of(peak.owners, MemoryOwner::activation), 2'000'000);
  EXPECT_TRUE(peak.running.ends_with(" in MmBackward0")) << peak.running;
  EXPECT_EQ(peak.units.front().name, "weight");
}

TEST(MemoryAnalyzer, NamesUnitsByModules) {
  MemoryAnalyzer analyzer;
  Net net;
  analyzer.watch(net);
  std::map<std::string, std::int64_t> units;
  for (const MemoryShare& share : analyzer.report().peak.units) units[share.name] = share.bytes;
  EXPECT_EQ(units.at("table"), 128 * 32 * 4);
  EXPECT_EQ(units.at("lstm"), bytes_of(*net.lstm));
  EXPECT_EQ(units.at("head"), bytes_of(*net.head));
}

TEST(MemoryAnalyzer, ScopesNestAndATensorIsKeptOverThem) {
  MemoryAnalyzer analyzer;
  torch::Tensor kept;
  {
    const auto outer = analyzer.scope("outer");
    megabytes(3);
    {
      const auto inner = analyzer.scope("inner");
      kept = megabytes(1);
      megabytes(1);
    }
  }
  kept = torch::Tensor();
  analyzer.record("all");
  const std::vector<MemoryRecord> records = analyzer.report().records;
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].tag, "inner");
  EXPECT_EQ(records[0].depth, 1);
  EXPECT_EQ(records[0].peak, 2'000'000);
  EXPECT_EQ(records[0].change, 1'000'000);
  EXPECT_EQ(of(records[0].owners, MemoryOwner::activation), 1'000'000);
  EXPECT_EQ(records[1].tag, "outer");
  EXPECT_EQ(records[1].depth, 0);
  EXPECT_EQ(records[1].peak, 3'000'000);
  EXPECT_EQ(records[1].allocated, 1'000'000);
  EXPECT_EQ(records[2].allocated, 0);
  EXPECT_EQ(records[2].peak, 3'000'000);
  EXPECT_GE(records[1].seconds, records[0].seconds);
}

TEST(MemoryAnalyzer, SeesWhatOtherThreadsFree) {
  MemoryAnalyzer analyzer;
  torch::Tensor large = megabytes(2), small = torch::zeros({1000});
  EXPECT_EQ(analyzer.record("allocated").allocated, 2'004'000);
  std::thread([one = std::move(large), two = std::move(small)]() mutable { one = two = torch::Tensor(); }).join();
  const MemoryRecord record = analyzer.record("freed elsewhere");
  EXPECT_EQ(record.allocated, 0);
  EXPECT_EQ(record.change, -2'004'000);
}

TEST(MemoryAnalyzer, AnalyzersOnTwoThreadsDoNotNoticeEachOther) {
  const auto run = [](std::int64_t size, std::int64_t& allocated, std::int64_t& peak) {
    MemoryAnalyzer analyzer;
    for (int i = 0; i < 50; ++i) megabytes(size);
    const torch::Tensor kept = megabytes(size);
    allocated = analyzer.record("end").allocated;
    peak = analyzer.report().peak.bytes;
  };
  std::int64_t allocated[2], peak[2];
  std::thread first(run, 1, std::ref(allocated[0]), std::ref(peak[0]));
  std::thread second(run, 3, std::ref(allocated[1]), std::ref(peak[1]));
  first.join();
  second.join();
  EXPECT_EQ(allocated[0], 1'000'000);
  EXPECT_EQ(peak[0], 1'000'000);
  EXPECT_EQ(allocated[1], 3'000'000);
  EXPECT_EQ(peak[1], 3'000'000);
}

TEST(MemoryAnalyzer, ASecondOneOnAThreadIsRefused) {
  const MemoryAnalyzer analyzer;
  EXPECT_THROW(MemoryAnalyzer(), StateError);
}

TEST(MemoryAnalyzer, MayEndBeforeTensorsScopesAndModules) {
  Net net;
  auto analyzer = std::make_unique<MemoryAnalyzer>();
  analyzer->watch(net);
  torch::Tensor loss = net.loss();
  auto scope = analyzer->scope("never ends");
  analyzer.reset();
  loss.backward();
  EXPECT_TRUE(net.head->weight.grad().defined());
  MemoryAnalyzer next;
  next.watch(net);
  loss = torch::Tensor();
  EXPECT_EQ(of(next.record("after").owners, MemoryOwner::gradient), bytes_of(net));
}

TEST(MemoryAnalyzer, ModulesMayEndBeforeIt) {
  MemoryAnalyzer analyzer;
  {
    Net net;
    analyzer.watch(net);
    net.loss().backward();
    EXPECT_GT(analyzer.record("there").allocated, 0);
  }
  EXPECT_EQ(analyzer.record("gone").allocated, 0);
}

// LibTorch's own allocator warns of the end of blocks whose beginning its profiler has not seen.
TEST(MemoryAnalyzer, OlderTensorsCountFromWatchOnAndNothingIsPrinted) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  auto* const before = c10::GetCPUAllocator();
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
  torch::Tensor watched = megabytes(2), other = megabytes(1);
  c10::SetCPUAllocator(before);
  {
    MemoryAnalyzer analyzer;
    analyzer.watch(watched, MemoryOwner::optimizer, "mine");
    other = torch::Tensor();
    const MemoryRecord there = analyzer.record("watched");
    EXPECT_EQ(there.allocated, 2'000'000);
    EXPECT_EQ(of(there.owners, MemoryOwner::optimizer), 2'000'000);
    watched = torch::Tensor();
    EXPECT_EQ(analyzer.record("gone").allocated, 0);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST(MemoryAnalyzer, TheTimelineHasThePeakAndItsOwners) {
  MemoryAnalyzer analyzer;
  for (int i = 0; i < 20'000; ++i) torch::zeros({i == 777 ? 1000 : 10});
  const MemoryReport report = analyzer.report();
  std::int64_t most = 0;
  for (const MemorySample& sample : report.timeline) {
    EXPECT_EQ(sum(sample.owners), sample.allocated);
    most = std::max(most, sample.allocated);
  }
  EXPECT_EQ(most, report.peak.bytes);
  EXPECT_EQ(most, 4000);
}

TEST(MemoryAnalyzer, ExplainsTheProcess) {
  MemoryAnalyzer analyzer;
  const std::vector<torch::Tensor> tensors{megabytes(50), megabytes(30), torch::ones({10'000})};
  const MemoryProcess process = analyzer.report().process;
  EXPECT_NEAR(static_cast<double>(sum(process.parts)), static_cast<double>(process.total),
              0.03 * static_cast<double>(process.total));
  EXPECT_EQ(process.parts.front().name, "tensors");
  EXPECT_GE(process.parts.front().bytes, 80'000'000);
}

}  // namespace zero::memory_analyzer_test
