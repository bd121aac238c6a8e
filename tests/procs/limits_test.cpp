// Models whose states are larger than the memory that there is.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/kernel_files.h"
#include "procs/zero_program.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using procs::contains;
using procs::Folder;
using procs::joined;
using procs::Result;
using procs::run;
using procs::Words;
using procs::zero;

constexpr std::int64_t kMib = 1 << 20;

// A control group below this process's own, whose processes have so much memory and no swap.
class MemoryLimit {
 public:
  static std::unique_ptr<MemoryLimit> of(std::int64_t bytes) {
    for (const ::zero::MemoryGroup& own : ::zero::memory_groups()) {
      auto limit = std::make_unique<MemoryLimit>(own.folder / ("zero-test-" + std::to_string(::getpid())));
      const bool first = own.version == 1;
      if (limit->made_ && limit->write(first ? "memory.limit_in_bytes" : "memory.max", bytes)) {
        limit->write(first ? "memory.memsw.limit_in_bytes" : "memory.swap.max", first ? bytes : 0);
        return limit;
      }
    }
    return nullptr;
  }
  explicit MemoryLimit(fs::path folder) : folder_(std::move(folder)) {
    std::error_code error;
    made_ = fs::create_directory(folder_, error);
  }
  ~MemoryLimit() {
    if (made_) ::rmdir(folder_.c_str());
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  // The command, in it.
  Words words(const Words& command) const {
    return joined({"/bin/sh", "-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"", folder_.string()}, command);
  }

 private:
  bool write(const char* file, std::int64_t value) const {
    std::ofstream out(folder_ / file);
    out << value << std::flush;
    return out.good();
  }

  fs::path folder_;
  bool made_ = false;
};

// Layers alike, and little else.
std::string model_of(const Folder& folder, int width, int layers) {
  const json config{
      {"model_type", "llama"},       {"hidden_size", width},           {"intermediate_size", width * 11 / 4},
      {"num_hidden_layers", layers}, {"num_attention_heads", 8},       {"num_key_value_heads", 8},
      {"vocab_size", 256},           {"max_position_embeddings", 128}, {"rms_norm_eps", 1e-5}};
  std::string path = folder.path("config" + std::to_string(layers) + ".json");
  std::ofstream(path) << config;
  return path;
}

Words training(const Folder& folder, const std::string& model, const Words& more) {
  return zero(
      joined({"train", "--model", model, "--data", folder.path("text"), "--plan", "zero3", "--precision", "bf16",
              "--seq", "32", "--batch", "1", "--steps", "1", "--profile", "none", "--json", folder.path("out")},
             more));
}

Words on_disk(const Folder& folder) {
  return {"--offload", "optimizer=disk,gradient=disk,parameter=disk", "--disk", folder.path("")};
}

std::int64_t states(const json& run) {
  std::int64_t bytes = 0;
  for (const char* state : {"parameter", "gradient", "optimizer"})
    bytes += run.at("state_bytes").at(state).at("measured").get<std::int64_t>();
  return bytes;
}

TEST(MemoryLimits, AModelOfFourTimesAsMuchTrainsWithItsStatesOnDisk) {
  constexpr std::int64_t kLimit = 400 * kMib;
  const auto limit = MemoryLimit::of(kLimit);
  if (!limit) GTEST_SKIP() << "control groups with a limit of memory cannot be made here";
  const Folder folder;
  const std::string model = model_of(folder, 1024, 9);
  const Result refused = run(limit->words(training(folder, model, {})));
  EXPECT_EQ(refused.code, 1) << refused.out;
  EXPECT_TRUE(contains(refused.err, "the limit of control group")) << refused.err;
  EXPECT_TRUE(contains(refused.err, "--offload")) << refused.err;
  const Result trained = run(limit->words(training(folder, model, on_disk(folder))));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_GE(states(folder.document("out").at("runs").at(0)), 4 * kLimit);
}

// The process's own memory, of which a layer more takes what its activations do.
TEST(MemoryLimits, TwiceTheLayersTakeNoMoreMemoryWithTheirStatesOnDisk) {
  const Folder folder;
  std::vector<std::int64_t> peaks, all;
  for (const int layers : {4, 8}) {
    const Result trained = run(training(folder, model_of(folder, 512, layers), on_disk(folder)));
    ASSERT_EQ(trained.code, 0) << trained.err;
    const json report = folder.document("out").at("runs").at(0);
    peaks.push_back(report.at("peak_bytes"));
    all.push_back(states(report));
  }
  EXPECT_GT(all[1] - all[0], 180 * kMib);
  EXPECT_LT(peaks[1] - peaks[0], 24 * kMib);
}

}  // namespace
