// The program's training on the simulated accelerator, in this process.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/report/report.h"
#include "cli/report/trace.h"
#include "cli/training/common.h"
#include "cli/training/train.h"
#include "cli/training/training_device.h"
#include "device/engines.h"
#include "folder.h"
#include "models/llama.h"
#include "zero/devices.h"
#include "zero/safetensors.h"

namespace zero::test::program_test {

using cli::Report;
using cli::RunOptions;
using cli::RunResult;

// A text, and a small model that has weights: the ranks here are threads, which would draw theirs from one generator.
class TheProgramOnADevice : public ModelsOnDevices {
 protected:
  void SetUp() override {
    ModelsOnDevices::SetUp();
    models::LlamaConfig config = models::llama_preset("micro");
    config.hidden_size = 16;
    config.intermediate_size = 24;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 2;
    config.num_key_value_heads = 1;
    torch::manual_seed(0);
    save_safetensors(*models::Llama(config), folder_.path());
    std::ofstream(folder_.path() + "/config.json") << models::config_json(config);
    std::ofstream text(folder_.path() + "/text");
    for (int i = 0; i < 2000; ++i) text << "word" << i * i % 97 << ' ';
  }

  RunOptions options(const std::string& device) const {
    RunOptions options;
    options.model = folder_.path();
    options.data = folder_.path() + "/text";
    options.device = device;
    options.steps = 3;
    options.seq = 12;
    options.batch = 2;
    options.eval_every = 2;
    return options;
  }

  // The first rank's.
  static RunResult run(const RunOptions& options, const std::string& plan, int ranks) {
    RunResult result;
    run_ranks(ranks, [&](const World& world) {
      const cli::Work work = cli::load(options);
      cli::Listener silent;
      RunResult mine = cli::run_plan(world, options, work, plan, silent);
      if (world.rank() == 0) result = std::move(mine);
    });
    return result;
  }

 private:
  Folder folder_;
};

TEST_F(TheProgramOnADevice, HasTheSameLossesUnderEveryPlan) {
  for (const int ranks : {1, 2}) {
    const RunResult first = run(options("accelerator"), "ddp", ranks);
    EXPECT_TRUE(first.bytes_agree());
    for (const char* plan : {"zero1", "zero2", "zero3"}) {
      const RunResult other = run(options("accelerator"), plan, ranks);
      EXPECT_EQ(first.losses, other.losses) << plan << " on " << ranks;
      EXPECT_EQ(first.evaluations.at(0).loss, other.evaluations.at(0).loss) << plan << " on " << ranks;
      EXPECT_TRUE(other.bytes_agree()) << plan << " on " << ranks;
    }
  }
  EXPECT_GT(accelerator::statistics(1).peak, 0) << "the second rank has a device of its own";
  EXPECT_EQ(accelerator::statistics(2).peak, 0);
}

TEST_F(TheProgramOnADevice, TrainsAsOnTheCpu) {
  const RunResult host = run(options("cpu"), "zero2", 1), device = run(options("accelerator:3"), "zero2", 1);
  ASSERT_EQ(host.losses.size(), device.losses.size());
  for (std::size_t i = 0; i < host.losses.size(); ++i) EXPECT_NEAR(host.losses[i], device.losses[i], 1e-5);
  EXPECT_GT(accelerator::statistics(3).peak, 0);
  EXPECT_EQ(accelerator::statistics(0).peak, 0);
}

TEST_F(TheProgramOnADevice, SaysWhereItWasAndWhatIsNotMeasuredThere) {
  const RunOptions asked = cli::with_device(options("accelerator"));
  Report report = cli::report_for(asked, cli::load(asked), 1);
  report.runs = {run(asked, "zero3", 1)};
  EXPECT_EQ(report.runs.front().activation.measured, cli::kUnmeasured);
  EXPECT_EQ(report.runs.front().peak.measured, cli::kUnmeasured);
  EXPECT_GT(report.runs.front().parameter.measured, 0);
  std::ostringstream text;
  print_report(text, report);
  EXPECT_TRUE(says(text.str(), {"1 rank on accelerator, ", "-  without --timeline"}));
  EXPECT_EQ(models::json_object(to_json(report), "the report").at("device"), "accelerator");
}

// The page's and the trace's bytes are the device's: at their largest they are the peak that was measured.
TEST_F(TheProgramOnADevice, RecordsAStep) {
  RunOptions asked = options("accelerator");
  asked.timeline = true;
  for (const int ranks : {1, 2}) {
    Report report = cli::report_for(cli::with_device(asked), cli::load(asked), ranks);
    report.runs = {run(asked, "zero3", ranks)};
    const RunResult& run = report.runs.front();
    EXPECT_GT(run.peak.measured, run.parameter.measured + run.gradient.measured + run.optimizer.measured);
    EXPECT_GT(run.activation.measured, 0);
    std::map<double, std::int64_t> bytes;
    const auto trace = nlohmann::json::parse(cli::chrome_trace(to_json(report)));
    for (const auto& event : trace.at("traceEvents"))
      if (event.at("ph") == "C")
        for (const auto& owner : event.at("args")) bytes[event.at("ts")] += owner.get<std::int64_t>();
    std::int64_t most = 0;
    for (const auto& [at, sum] : bytes) most = std::max(most, sum);
    EXPECT_GT(most, 0);
    EXPECT_LE(most, run.peak.measured) << "of the rank that has most";
    if (ranks == 1) {
      EXPECT_EQ(most, run.peak.measured);
    }
  }
}

TEST_F(TheProgramOnADevice, IsOneOfThoseThatThereAre) {
  const auto refusal = [&](const std::string& device) { return thrown_by([&] { cli::with_device(options(device)); }); };
  const std::string count = std::to_string(accelerator::kDevices), there = count + " devices of kind accelerator";
  for (const std::string& device : {"accelerator:" + count, std::string("cpu:1")})
    EXPECT_TRUE(says(refusal(device), {"--device: there is no device '" + device + "'", "the CPU and " + there}));
  EXPECT_TRUE(says(refusal("gpu"), {"LibTorch knows no kind of device 'gpu'", there}));
  EXPECT_TRUE(says(refusal("xla"), {"this LibTorch was built without devices of kind 'xla'", "--device cpu"}));
  EXPECT_TRUE(says(refusal("meta"), {"this libzero was not built for devices of kind 'meta'", "--device cpu"}));
  EXPECT_EQ(refusal("accelerator:3"), "");
}

TEST_F(TheProgramOnADevice, IsOneARankWhereNoneIsNamed) {
  const auto of = [](int local_rank, const char* name) {
    return cli::device_of(World(Communicator(), local_rank, local_rank + 1), name).str();
  };
  EXPECT_EQ(of(1, "accelerator"), "accelerator:1");
  EXPECT_EQ(of(accelerator::kDevices + 1, "accelerator"), "accelerator:1") << "shared by two";
  EXPECT_EQ(of(5, "accelerator:2"), "accelerator:2");
  EXPECT_EQ(of(5, "cpu"), "cpu");
  const std::string fault = thrown_by([] { zero::device_of(World(), accelerator::device(accelerator::kDevices)); });
  EXPECT_TRUE(says(fault, {"there is no device 'accelerator:", "of its kind there are"}));
}

TEST_F(TheProgramOnADevice, IsOfOneKindOnAllRanks) {
  std::mutex mutex;
  const auto meet = [&](const char* first, const char* second) {
    std::string fault;
    run_ranks(2, [&](const World& world) {
      const RunOptions mine = options(world.rank() == 0 ? first : second);
      const std::string said = thrown_by([&] { cli::require_common(world, mine, cli::load(mine)); });
      const std::lock_guard lock(mutex);
      fault = said;
    });
    return fault;
  };
  EXPECT_TRUE(says(meet("cpu", "accelerator"),
                   {"--device is not the same on all ranks: ", "rank 0 has cpu", "rank 1 has accelerator"}));
  EXPECT_EQ(meet("accelerator:1", "accelerator:0"), "");
}

}  // namespace zero::test::program_test
