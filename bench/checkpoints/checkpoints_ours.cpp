// What a checkpoint costs: the pause of a save behind training beside a copy of the same bytes, saving and loading
// beside the disk alone. Start it with `zero launch -n N`. Rank 0 prints one line, RESULT and JSON; times are those of
// the slowest rank, in seconds, one for each round.
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "zero/zero.h"

namespace {

struct Setting {
  std::string folder;
  std::string plan = "zero3";
  std::int64_t layers = 16;
  std::int64_t dim = 2048;
  int rounds = 5;
};

struct Layers : torch::nn::Module {
  Layers(std::int64_t layers, std::int64_t dim) {
    for (std::int64_t i = 0; i < layers; ++i) {
      const auto layer = torch::nn::Linear(torch::nn::LinearOptions(dim, dim).bias(false));
      register_module("layer" + std::to_string(i), layer);
      all.push_back(layer);
    }
  }
  at::Tensor loss() {
    at::Tensor x = torch::ones({1, all.front()->options.in_features()});
    for (auto& layer : all) x = layer(x);
    return x.square().mean();
  }
  std::vector<torch::nn::Linear> all;
};

std::int64_t status(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;) {
    std::int64_t kib = 0;
    if (word == key && in >> kib) return kib << 10;
  }
  return 0;
}

// Makes VmHWM count from now on.
void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

void write_synced(const std::string& path, const std::vector<char>& bytes, int flags) {
  constexpr std::size_t at_once = std::size_t{16} << 20;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | flags, 0666);
  const auto begin = (std::size_t{4096} - reinterpret_cast<std::uintptr_t>(bytes.data()) % 4096) % 4096;
  for (std::size_t at = begin; at + 4096 <= bytes.size();) {
    const std::size_t some = std::min(at_once, (bytes.size() - at) / 4096 * 4096);
    if (::write(file, bytes.data() + at, some) != static_cast<ssize_t>(some)) std::perror("write");
    at += some;
  }
  ::fsync(file);
  ::close(file);
}

class Bench {
 public:
  Bench(const zero::World& world, const Setting& setting)
      : world_(world),
        setting_(setting),
        model_(setting.layers, setting.dim),
        engine_(model_, world, zero::Plan::named(setting.plan), zero::AdamW{}) {
    train();
  }

  nlohmann::json run() {
    const std::string folder = setting_.folder + "/ours";
    zero::prepare_checkpoints(world_, folder);
    engine_.save(folder, {.background = true});
    const auto slice = static_cast<std::size_t>(engine_.ledger()[zero::Owner::snapshot].bytes);
    engine_.finish_save();
    std::vector<char> from(slice, 1), to(slice, 2);
    for (int round = 0; round < setting_.rounds; ++round) {
      time("memcpy", [&] { std::memcpy(to.data(), from.data(), slice); });
      begin_anew(folder);
      time("pause", [&] { engine_.save(folder, {.background = true}); });
      time("behind", [&] { engine_.finish_save(); });
      for (const auto& [name, flags] : {std::pair{"disk", 0}, {"disk, past the page cache", O_DIRECT}}) {
        begin_anew(folder);
        const std::string own = setting_.folder + "/raw-" + std::to_string(world_.rank());
        time(name, [&] { write_synced(own, from, flags); });
        std::filesystem::remove(own);
      }
      begin_anew(folder);
      peak("save", [&] { time("save", [&] { engine_.save(folder); }); });
      leave_page_cache(folder);
      time("load from the disk", [&] { engine_.load(folder); });
      peak("load", [&] { time("load", [&] { engine_.load(folder); }); });
    }
    const std::int64_t on_disk = world_.rank() == 0 ? bytes_of(folder) : 0;
    result_["slice_bytes"] = slice;
    result_["checkpoint_bytes"] = on_disk;
    result_["state_bytes"] = 12 * setting_.layers * setting_.dim * setting_.dim;
    return result_;
  }

 private:
  void train() {
    engine_.backward(model_.loss());
    engine_.step();
  }

  // Another step, and nothing of those before on the disk.
  void begin_anew(const std::string& folder) {
    train();
    if (world_.rank() == 0)
      for (const std::int64_t step : zero::checkpoint_steps(folder))
        if (step < engine_.steps()) std::filesystem::remove_all(folder + "/" + name_of(step));
    ::sync();
  }

  // Files that are synced.
  void leave_page_cache(const std::string& folder) const {
    if (world_.rank() != 0) return;
    for (const auto& each : std::filesystem::recursive_directory_iterator(folder)) {
      if (!each.is_regular_file()) continue;
      const int file = ::open(each.path().c_str(), O_RDONLY);
      if (::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) != 0) std::perror("posix_fadvise");
      ::close(file);
    }
  }

  static std::string name_of(std::int64_t step) {
    const std::string digits = std::to_string(step);
    return "step-" + std::string(6 - digits.size(), '0') + digits;
  }

  // All ranks begin together; the slowest counts.
  template <class Work>
  void time(const char* name, Work&& work) {
    world_.communicator().barrier().wait();
    const auto start = bench::Clock::now();
    work();
    result_["seconds"][name].push_back(slowest(bench::seconds_since(start)));
  }

  // The bytes that it holds at most beside what was there before.
  template <class Work>
  void peak(const char* name, Work&& work) {
    const std::int64_t before = status("VmRSS:");
    reset_peak();
    work();
    result_["bytes"][name].push_back(slowest(static_cast<double>(status("VmHWM:") - before)));
  }

  double slowest(double mine) const {
    std::vector<double> all(static_cast<std::size_t>(world_.size()));
    world_.communicator()
        .all_gather({&mine, 1, zero::Dtype::f64}, {all.data(), world_.size(), zero::Dtype::f64})
        .wait();
    return *std::ranges::max_element(all);
  }

  static std::int64_t bytes_of(const std::string& folder) {
    std::int64_t bytes = 0;
    for (const auto& each : std::filesystem::recursive_directory_iterator(folder))
      if (each.is_regular_file()) bytes += static_cast<std::int64_t>(each.file_size());
    return bytes;
  }

  const zero::World& world_;
  const Setting& setting_;
  Layers model_;
  zero::Engine engine_;
  nlohmann::json result_;
};

}  // namespace

int main(int argc, char** argv) try {
  Setting setting;
  CLI::App app("What a checkpoint costs.");
  app.add_option("--folder", setting.folder)->required();
  app.add_option("--plan", setting.plan);
  app.add_option("--layers", setting.layers);
  app.add_option("--dim", setting.dim);
  app.add_option("--rounds", setting.rounds);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  const zero::World world = zero::init();
  const nlohmann::json result = Bench(world, setting).run();
  if (world.rank() == 0) std::printf("RESULT %s\n", result.dump().c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "checkpoints_ours: %s\n", error.what());
  return 1;
}
