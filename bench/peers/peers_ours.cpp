// One training run of the model under a plan of ours: what peer.py is for the peers. Start it with
// `zero launch -n N`. Rank 0 prints one line, RESULT and JSON, or with --growth GROWTH and JSON.
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/peers/model.h"
#include "partition/plan_settings.h"
#include "zero/zero.h"

namespace {

constexpr std::uint64_t kSeedOfData = 1234;
constexpr int kSettled = 20;  // steps after which memory is to stay as it is

struct RunOptions {
  std::string plan = "zero3";
  std::string dtype = "fp32";
  int shard = 0;   // ranks of a shard group; 0: all
  int tensor = 1;  // of the tensor axis
  std::string kept = "none", reduced;
  int overlap = 0;
  peers::Shape shape;
  std::int64_t batch = 2;
  int steps = 5;
  int warmup = 2;
  int growth = 0;
  std::string activation_budget;
};

// Of the monotonic clock, as Python's time.monotonic().
double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// This process's share of the memory it maps, in bytes.
std::int64_t pss() {
  std::ifstream in("/proc/self/smaps_rollup");
  for (std::string word; in >> word;) {
    std::int64_t kib = 0;
    if (word == "Pss:" && in >> kib) return kib << 10;
  }
  throw std::runtime_error("/proc/self/smaps_rollup has no Pss: the kernel is too old");
}

// While all ranks are at the same place: what they share is divided by all of them.
std::int64_t settled_pss(const zero::World& world) {
  world.communicator().barrier().wait();
  const std::int64_t bytes = pss();
  world.communicator().barrier().wait();
  return bytes;
}

// One value of every rank, in rank order.
std::vector<std::int64_t> gathered(const zero::World& world, std::int64_t mine) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  world.communicator().all_gather({&mine, 1, zero::Dtype::i64}, {all.data(), world.size(), zero::Dtype::i64}).wait();
  return all;
}

class Run {
 public:
  Run(const zero::World& world, const RunOptions& options)
      : world_(world),
        options_(options),
        base_pss_(settled_pss(world)),
        model_(seeded_model(options.shape)),
        engine_(*model_, zero::Mesh(world, {.shard = options.shard, .tensor = options.tensor}), plan(options),
                zero::AdamW{.lr = 3e-4, .beta2 = 0.95, .weight_decay = 0.1}, engine_options(options)),
        random_(at::make_generator<at::CPUGeneratorImpl>(kSeedOfData +
                                                         static_cast<std::uint64_t>(world.rank() / options.tensor))) {}

  nlohmann::json measure() {
    std::vector<double> seconds, losses;
    for (int i = 0; i < options_.warmup; ++i) timed_step(losses);
    engine_.reset_peaks();
    const double begin = now();
    for (int i = 0; i < options_.steps; ++i) seconds.push_back(timed_step(losses));
    const double end = now();
    return {{"mode", options_.plan},
            {"dtype", options_.dtype},
            {"world", world_.size()},
            {"transport", world_.communicator().backend()},
            {"parameters", engine_.layout().numel()},
            {"step_seconds", seconds},
            {"losses", losses},
            {"waited_seconds", waited_},
            {"base_pss", gathered(world_, base_pss_)},
            {"pids", gathered(world_, ::getpid())},
            {"window", {begin, end}},
            {"ledger_peak", gathered(world_, engine_.ledger().peak_total)},
            {"activations", gathered(world_, engine_.activations().unlimited_bytes)}};
  }

  // Shares of memory after the first steps and at the end, and the largest change of any rank.
  nlohmann::json measure_growth() {
    std::vector<double> losses;
    for (int i = 0; i < kSettled; ++i) timed_step(losses);
    const auto before = gathered(world_, settled_pss(world_));
    for (int i = kSettled; i < options_.growth; ++i) timed_step(losses);
    const auto after = gathered(world_, settled_pss(world_));
    double percent = -100;
    for (std::size_t i = 0; i < before.size(); ++i)
      percent = std::max(percent, 100.0 * static_cast<double>(after[i] - before[i]) / static_cast<double>(before[i]));
    return {{"mode", options_.plan},    {"dtype", options_.dtype},   {"world", world_.size()},
            {"steps", options_.growth}, {"settled_after", kSettled}, {"settled_pss", before},
            {"last_pss", after},        {"percent", percent}};
  }

 private:
  static peers::LanguageModel seeded_model(const peers::Shape& shape) {
    torch::manual_seed(0);
    return peers::LanguageModel(shape);
  }

  // Along the tensor axis as Megatron-LM cuts them, the words at both ends.
  static zero::Options engine_options(const RunOptions& options) {
    using enum zero::TensorCut;
    if (options.tensor == 1) return {};
    return {.tensor = zero::tensor_named({{"*.query", column},
                                          {"*.key", column},
                                          {"*.value", column},
                                          {"*.output", row},
                                          {"*.gate", column},
                                          {"*.up", column},
                                          {"*.down", row},
                                          {"table", column},
                                          {"head", column}})};
  }

  static zero::Plan plan(const RunOptions& options) {
    const zero::Plan plan = zero::Plan::named(options.plan)
                                .precision(zero::precision_named(options.dtype))
                                .overlap(options.overlap)
                                .activation_budget(zero::ActivationBudget::named(options.activation_budget));
    const zero::Plan kept = options.kept == "none" ? plan : plan.keep_gathered(zero::kept_copy_named(options.kept));
    return options.reduced.empty() ? kept : zero::plan_setting("reduce_in").set(kept, options.reduced);
  }

  double timed_step(std::vector<double>& losses) {
    const std::int64_t seq = options_.shape.seq;
    const torch::Tensor rows =
        torch::randint(0, options_.shape.vocab, {options_.batch, seq + 1}, random_, torch::kLong);
    world_.communicator().barrier().wait();
    const double begin = now();
    engine_.backward(model_->forward(rows.slice(1, 0, seq), rows.slice(1, 1)));
    const zero::StepReport report = engine_.step();
    losses.push_back(report.loss);
    waited_ = {report.gather_seconds, report.reduce_seconds, report.vote_seconds, report.update_seconds};
    world_.communicator().barrier().wait();
    return now() - begin;
  }

  const zero::World& world_;
  const RunOptions& options_;
  std::int64_t base_pss_;
  peers::LanguageModel model_;
  zero::Engine engine_;
  at::Generator random_;
  std::array<double, 4> waited_ = {};  // in the last step: for gathers, reductions, the vote, the update
};

void add_options(CLI::App& app, RunOptions& options) {
  app.add_option("--plan", options.plan)->check(CLI::IsMember(zero::Plan::presets()))->capture_default_str();
  app.add_option("--shard", options.shard, "Ranks of a shard group; 0: all")->check(CLI::NonNegativeNumber);
  app.add_option("--tensor", options.tensor, "Ranks of the tensor axis")->check(CLI::PositiveNumber);
  app.add_option("--keep", options.kept, "What stays of gathered parameters until the update");
  app.add_option("--reduce-in", options.reduced, "What gradients travel in");
  app.add_option("--overlap", options.overlap, "Units on their way at once; 0: by where the ranks are");
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"fp32", "bf16"}))->capture_default_str();
  const auto add = [&](const char* name, auto& value) {
    app.add_option(name, value)->check(CLI::PositiveNumber)->capture_default_str();
  };
  add("--layers", options.shape.layers);
  add("--dim", options.shape.dim);
  add("--heads", options.shape.heads);
  add("--ffn", options.shape.ffn);
  add("--vocab", options.shape.vocab);
  add("--seq", options.shape.seq);
  add("--batch", options.batch);
  add("--steps", options.steps);
  add("--warmup", options.warmup);
  app.add_option("--activation-budget", options.activation_budget, "Bytes, or a share, as 50%");
  app.add_option("--growth", options.growth, "Train this many steps and tell how memory grows")
      ->check(CLI::Range(kSettled + 1, 1 << 20));
}

int run(const RunOptions& options) {
  torch::set_num_threads(1);
  const zero::World world = zero::init();
  Run run(world, options);
  const nlohmann::json result = options.growth ? run.measure_growth() : run.measure();
  if (world.rank() == 0) std::printf("%s %s\n", options.growth ? "GROWTH" : "RESULT", result.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  RunOptions options;
  CLI::App app("Trains the model of bench/peers under a plan of ours.", "peers_ours");
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peers_ours: %s\n", error.what());
    return 1;
  }
}
