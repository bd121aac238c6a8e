// The update of a step whose optimizer is on disk beside its three stages alone, which take turns with it: reading the
// same bytes, updating them in memory, writing them; and, since a disk may have one bandwidth for both, reading and
// writing them at once. And what the process needs of memory, beside what was foreseen.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/huge_pages.h"
#include "base/system_files.h"
#include "bench/timing.h"
#include "memory/disk_store.h"
#include "memory/store.h"
#include "zero/engine.h"
#include "zero/world.h"

namespace {

constexpr double kMiB = 1 << 20;
const zero::Store::Book kNobody = [](zero::Owner, int, zero::Tier, std::int64_t) {};

struct Size {
  int layers = 16, small = 0;
  std::int64_t width = 2048;
  std::int64_t parameters() const { return layers * (width + small) * width; }
};

// As little computing as parameters allow; beside each matrix so many vectors.
struct LayersImpl : torch::nn::Module {
  explicit LayersImpl(const Size& size) : list(register_module("list", torch::nn::Sequential())) {
    for (int i = 0; i < size.layers; ++i) {
      torch::nn::Linear layer(torch::nn::LinearOptions(size.width, size.width).bias(false));
      for (int k = 0; k < size.small; ++k)
        small.push_back(layer->register_parameter("small" + std::to_string(k), torch::zeros({size.width})));
      list->push_back(layer);
    }
  }
  at::Tensor loss(const at::Tensor& x) {
    at::Tensor sum = list->forward(x).square().mean();
    for (const at::Tensor& each : small) sum = sum + each.sum();
    return sum;
  }
  torch::nn::Sequential list;
  std::vector<at::Tensor> small;
};
TORCH_MODULE(Layers);

zero::Options options_on(const zero::DiskOptions& disk) {
  zero::Options options;
  options.disk = disk;
  return options;
}

class Training {
 public:
  Training(const Size& size, const zero::World& world, const zero::Plan& plan, const zero::DiskOptions& disk)
      : model_(size),
        input_(torch::randn({1, size.width})),
        engine_(*model_, world, plan, zero::AdamW{.lr = 1e-4, .weight_decay = 0.1}, options_on(disk)) {}

  // Returns the seconds of the update.
  double step() {
    engine_.backward(model_->loss(input_));
    return engine_.step().update_seconds;
  }
  zero::Engine& engine() { return engine_; }

 private:
  Layers model_;
  at::Tensor input_;
  zero::Engine engine_;
};

// Bytes in a store that are read and written from one end to the other, with all under way that the store takes.
class Stage {
 public:
  Stage(const zero::DiskOptions& options, std::int64_t bytes)
      : memory_(
            zero::Tier::device, [](std::size_t count) { return zero::in_memory(zero::huge_page_memory(count)); },
            kNobody),
        store_(options, memory_, kNobody),
        block_(store_.take(bytes, zero::Owner::optimizer)),
        piece_(store_.block()),
        under_way_(static_cast<std::size_t>(store_.depth()) * options.directories.size()),
        buffers_(zero::huge_page_memory(static_cast<std::size_t>(piece_) * under_way_)) {
    write();
  }
  void read() { pass(0, block_.bytes(), {}); }
  void write() { pass({}, block_.bytes(), 0); }
  // Both, one half being read while the other is written.
  void both() {
    const std::int64_t half = block_.bytes() / 2 / piece_ * piece_;
    pass(0, half, half);
    pass(half, half, 0);
  }
  std::string describe() const { return store_.describe(); }

 private:
  // So many bytes from where each begins.
  void pass(std::optional<std::int64_t> reads, std::int64_t bytes, std::optional<std::int64_t> writes) {
    for (std::int64_t at = 0; at < bytes; at += piece_) {
      const std::int64_t count = std::min(piece_, bytes - at);
      if (reads) pending_.push_back(block_.read(*reads + at, next(count)));
      if (writes) pending_.push_back(block_.write(*writes + at, next(count)));
    }
    for (; !pending_.empty(); pending_.pop_front()) pending_.front().wait();
  }

  // Where an operation has its bytes: one before it is over by then.
  zero::View next(std::int64_t count) {
    if (pending_.size() == under_way_) {
      pending_.front().wait();
      pending_.pop_front();
    }
    char* const memory = static_cast<char*>(buffers_.get()) + next_++ % under_way_ * static_cast<std::size_t>(piece_);
    return {memory, count, zero::Dtype::u8};
  }

  zero::AddressableStore memory_;
  zero::DiskStore store_;
  zero::Block block_;
  std::int64_t piece_;
  std::size_t under_way_, next_ = 0;
  std::shared_ptr<void> buffers_;
  std::deque<zero::Pending> pending_;
};

std::int64_t resident(const char* field) {
  return zero::field_of("/proc/self/status", field).value_or(0) << 10;
}

void expect_memory(double used, double predicted) {
  const double apart = (used - predicted) / kMiB;
  std::printf("resident at most %.1f MiB more than before; predicted %.1f MiB\n", used / kMiB, predicted / kMiB);
  std::printf("%s  resident memory beside the prediction: %+.1f MiB, at most 64 apart\n",
              std::abs(apart) <= 64 ? "PASS" : "FAIL", apart);
}

struct Round {
  double update, read, memory, write, both;
  double slowest() const { return std::max({read, memory, write}); }
};

void print(const std::vector<Round>& rounds, double bytes) {
  const auto middle = [&](auto&& seconds_of) {
    std::vector<double> all;
    for (const Round& round : rounds) all.push_back(seconds_of(round));
    return bench::median(all);
  };
  std::printf("| | ms | GB/s of the disk |\n|---|---|---|\n");
  const auto row = [&](const char* name, double Round::*part, double moved) {
    const double seconds = middle([part](const Round& round) { return round.*part; });
    std::printf("| %s | %.1f | ", name, 1e3 * seconds);
    moved > 0 ? std::printf("%.2f |\n", 1e-9 * moved / seconds) : std::printf("|\n");
  };
  row("update with its optimizer on disk", &Round::update, 2 * bytes);
  row("the same bytes read", &Round::read, bytes);
  row("the same update in memory", &Round::memory, 0);
  row("the same bytes written", &Round::write, bytes);
  row("the same bytes read and written at once", &Round::both, 2 * bytes);
  const auto judge = [&](const char* what, auto&& slowest) {
    const double ratio = middle([&](const Round& round) { return round.update / slowest(round); });
    std::printf("%s  update over %s: %.2f, at most 1.10\n", ratio <= 1.10 ? "PASS" : "FAIL", what, ratio);
  };
  judge("its slowest stage", [](const Round& round) { return round.slowest(); });
  judge("its slowest stage, where reading and writing are one",
        [](const Round& round) { return std::max(round.both, round.memory); });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("An update on disk beside its stages.");
  Size size;
  int rounds = 9, threads = 1;
  zero::DiskOptions disk;
  std::string directory = std::filesystem::temp_directory_path().string();
  app.add_option("--layers", size.layers)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--small", size.small, "vectors of --width in each layer")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--width", size.width)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--threads", threads)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--disk", directory)->check(CLI::ExistingDirectory)->capture_default_str();
  app.add_option("--block", disk.block, "bytes of an operation; 0: measured")->capture_default_str();
  app.add_option("--depth", disk.depth, "operations under way; 0: those of 8 MiB")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(threads);

  const zero::World world = zero::init();
  disk.directories = {directory};
  const zero::Plan plan = zero::Plan::zero2().bf16();
  const zero::Plan on_disk = plan.offload(zero::State::optimizer, zero::Tier::disk);
  Training({.layers = 2, .width = 64}, world, on_disk, disk).step();  // what is loaded and kept for ever
  const std::int64_t before = resident("VmRSS:");
  Training training(size, world, on_disk, disk);
  training.step();
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts over
  for (int i = 0; i < 2; ++i) training.step();
  const double used = static_cast<double>(resident("VmHWM:") - before);
  const double bytes =
      static_cast<double>(training.engine().estimate().held.on(zero::Tier::disk, zero::Owner::optimizer).bytes);
  std::printf("%lld parameters, %.0f MiB of the optimizer on disk, medians of %d rounds, %d threads\n",
              static_cast<long long>(size.parameters()), bytes / kMiB, rounds, threads);
  expect_memory(used, static_cast<double>(training.engine().estimate().held.peak_held));

  Training in_memory(size, world, plan, {});
  Stage stage(disk, static_cast<std::int64_t>(bytes));
  std::printf("%s\n", stage.describe().c_str());
  const auto timed = [](auto&& work) {
    const auto start = bench::Clock::now();
    work();
    return bench::seconds_since(start);
  };
  std::vector<Round> all;
  for (int round = -1; round < rounds; ++round) {
    const Round each{.update = training.step(),
                     .read = timed([&] { stage.read(); }),
                     .memory = in_memory.step(),
                     .write = timed([&] { stage.write(); }),
                     .both = timed([&] { stage.both(); })};
    if (round >= 0) all.push_back(each);
  }
  print(all, bytes);
}
