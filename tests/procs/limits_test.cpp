// Models whose states are larger than the memory that there is.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "base/system_files.h"
#include "procs/zero_program.h"

namespace limits_test {

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

// What a command may take.
class MemoryLimit {
 public:
  virtual ~MemoryLimit() = default;
  // The command, in it.
  virtual Words words(const Words& command) const = 0;
  virtual std::string name() const = 0;
};

// A control group below this process's own, whose processes have so much memory and no swap.
class GroupLimit final : public MemoryLimit {
 public:
  // None where groups cannot be made.
  static std::unique_ptr<GroupLimit> of(std::int64_t bytes) {
    for (const ::zero::MemoryGroup& own : ::zero::memory_groups()) {
      auto limit = std::make_unique<GroupLimit>(own.folder / ("zero-test-" + std::to_string(::getpid())));
      const bool first = own.version == 1;
      if (limit->made_ && limit->write(first ? "memory.limit_in_bytes" : "memory.max", bytes)) {
        limit->write(first ? "memory.memsw.limit_in_bytes" : "memory.swap.max", first ? bytes : 0);
        return limit;
      }
    }
    return nullptr;
  }
  explicit GroupLimit(fs::path folder) : folder_(std::move(folder)) {
    std::error_code error;
    made_ = fs::create_directory(folder_, error);
  }
  ~GroupLimit() override {
    if (made_) ::rmdir(folder_.c_str());
  }
  GroupLimit(const GroupLimit&) = delete;
  GroupLimit& operator=(const GroupLimit&) = delete;

  std::string name() const override { return "the limit of control group"; }
  Words words(const Words& command) const override {
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

// Each process's data: what it has when the program is loaded and its threads have their stacks, and so much more.
// Reserved addresses count as data, so that there is no arena of them, and the C library keeps no heap of what was
// freed.
class DataLimit final : public MemoryLimit {
 public:
  explicit DataLimit(std::int64_t bytes) : bytes_(bytes) {}
  static std::unique_ptr<DataLimit> of(std::int64_t bytes) {
    constexpr std::int64_t kTried = 800 * kMib;
    const Folder folder;
    const Result refused = run(DataLimit(kTried).words(training(folder, model_of(folder, 4096, 8), {})));
    std::smatch left;
    if (!std::regex_search(refused.err, left, std::regex("and ([0-9.]+) MB are available"))) return nullptr;
    return std::make_unique<DataLimit>(kTried - static_cast<std::int64_t>(1e6 * std::stod(left[1])) + bytes);
  }

  std::string name() const override { return "the limit of a process's data (ulimit -d)"; }
  Words words(const Words& command) const override {
    return joined(
        {"/bin/sh", "-c", "ulimit -d \"$0\" && export ZERO_ARENA=0 MALLOC_MMAP_THRESHOLD_=65536 && exec \"$@\"",
         std::to_string(bytes_ / 1024)},
        command);
  }

 private:
  std::int64_t bytes_;
};

// By group, unless it is to be by process, or no group can be made.
std::unique_ptr<MemoryLimit> limit_of(std::int64_t bytes, bool of_processes) {
  std::unique_ptr<MemoryLimit> limit;
  if (!of_processes) limit = GroupLimit::of(bytes);
  if (!limit) limit = DataLimit::of(bytes);
  return limit;
}

// What an error says would fit: what stands behind each option.
std::string advised(const std::string& error, const std::string& option) {
  const std::size_t at = error.find("this fits: "), found = error.find(option + " ", at);
  if (at == error.npos || found == error.npos) return {};
  const std::size_t begin = found + option.size() + 1;
  std::string value = error.substr(begin, error.find_first_of(" )\n", begin) - begin);
  if (value.ends_with(",")) value.pop_back();
  return value;
}

std::int64_t states(const json& run) {
  std::int64_t bytes = 0;
  for (const char* state : {"parameter", "gradient", "optimizer"})
    bytes += run.at("state_bytes").at(state).at("measured").get<std::int64_t>();
  return bytes;
}

class MemoryLimits : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(All, MemoryLimits, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "OfProcesses" : "OfGroups"; });

// As it is told to when it is refused.
TEST_P(MemoryLimits, AModelOfFourTimesAsMuchTrainsWithItsStatesOnDisk) {
  constexpr std::int64_t kLimit = 400 * kMib;
  const auto limit = limit_of(kLimit, GetParam());
  ASSERT_TRUE(limit);
  const Folder folder;
  const std::string model = model_of(folder, 1024, 9);
  const Result refused = run(limit->words(training(folder, model, {})));
  EXPECT_EQ(refused.code, 1) << refused.out;
  EXPECT_TRUE(contains(refused.err, limit->name())) << refused.err;
  const std::string offload = advised(refused.err, "--offload");
  ASSERT_NE(offload, "") << refused.err;
  const Result trained = run(limit->words(training(folder, model, {"--offload", offload, "--disk", folder.path("")})));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_GE(states(folder.document("out").at("runs").at(0)), 4 * kLimit);
}

// Fewer sequences, or another model.
TEST_P(MemoryLimits, WhatIsSaidToFitTrains) {
  const auto limit = limit_of(400 * kMib, GetParam());
  ASSERT_TRUE(limit);
  const Folder folder;
  const auto train = [&](const std::string& model, const std::string& batch) {
    return run(limit->words(zero({"train", "--model", model, "--data", folder.path("text"), "--plan", "zero3", "--seq",
                                  "64", "--batch", batch, "--steps", "1", "--profile", "none"})));
  };
  const Result many = train("tiny", "16384");
  EXPECT_EQ(many.code, 1) << many.out;
  const std::string batch = advised(many.err, "--batch");
  ASSERT_NE(batch, "") << many.err;
  const Result fewer = train("tiny", batch);
  EXPECT_EQ(fewer.code, 0) << fewer.err;
  const Result large = train("1b", "1");
  EXPECT_EQ(large.code, 1) << large.out;
  const std::string model = advised(large.err, "--model");
  ASSERT_NE(model, "") << large.err;
  const Result smaller = train(model, "1");
  EXPECT_EQ(smaller.code, 0) << smaller.err;
}

// The process's own memory, of which a layer more takes what its activations do.
TEST(MemoryOfAProcess, DoesNotGrowWithLayersWhoseStatesAreOnDisk) {
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

}  // namespace limits_test
