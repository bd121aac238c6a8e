// Where the memory goes, and what each stage of ZeRO saves: three linear layers of 2048, a batch of 32, Adam in fp32.
//   zero launch -n 4 --no-prefix memory_savings
#include <malloc.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <fstream>

#include "zero/zero.h"

namespace {

constexpr std::int64_t kWidth = 2048, kBatch = 32;
constexpr int kSteps = 3;

double megabytes(const char* file, const std::string& field) {
  std::ifstream in(file);
  for (std::string word; in >> word;)
    if (double kib = 0; word == field && in >> kib) return kib * 1024 / 1e6;
  return 0;
}

// Resident memory; of what ranks share, each has its part.
double process(const char* field) {
  const double others =
      megabytes("/proc/self/status", "RssShmem:") - megabytes("/proc/self/smaps_rollup", "Pss_Shmem:");
  return megabytes("/proc/self/status", field) - others;
}

struct Measured {
  double state, all, process;  // MB of this rank: model state; with activations and buffers; above the start
};

Measured train(const zero::World& world, const zero::Plan& plan) {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts over
  const double before = process("VmRSS:");
  torch::manual_seed(0);
  using torch::nn::Linear, torch::nn::ReLU;
  torch::nn::Sequential model(Linear(kWidth, kWidth), ReLU(), Linear(kWidth, kWidth), ReLU(), Linear(kWidth, kWidth));
  zero::Engine engine(*model, world, plan, zero::Adam{.lr = 1e-3});
  for (int step = 0; step < kSteps; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(engine.micro_batch()));
    const auto x = torch::randn({kBatch, kWidth}), y = torch::randn({kBatch, kWidth});
    engine.backward(torch::mse_loss(model->forward(x), y));
    engine.step();
  }
  const zero::Ledger ledger = engine.ledger();
  std::int64_t state = 0;
  for (const zero::Owner owner : {zero::Owner::parameter, zero::Owner::gradient, zero::Owner::optimizer})
    state += ledger[owner].bytes;
  return {static_cast<double>(state) / 1e6, static_cast<double>(ledger.peak_total) / 1e6, process("VmHWM:") - before};
}

int run() {
  const zero::World world = zero::init();
  const double psi = 3 * (kWidth * kWidth + kWidth), n = world.size();
  const double theory[] = {16 * psi, 8 * psi + 8 * psi / n, 4 * psi + 12 * psi / n, 16 * psi / n};
  if (world.rank() == 0)
    std::printf("%d ranks, %.0f parameters, fp32, Adam; MB of a rank\n\n%-6s %8s %8s %8s %8s %8s %8s\n", world.size(),
                psi, "plan", "state", "theory", "saved", "theory", "peak", "process");
  double first = 0;
  bool good = true;
  for (int i = 0; i < 4; ++i) {
    const zero::Plan plan = zero::Plan::named(zero::Plan::presets()[static_cast<std::size_t>(i)]);
    const Measured measured = train(world, plan);
    if (i == 0) first = measured.state;
    const double saved = 100 * (1 - measured.state / first), expected = 100 * (1 - theory[i] / theory[0]);
    good = good && saved > expected - 0.2;
    if (world.rank() == 0)
      std::printf("%-6s %8.1f %8.1f %6.2f %% %6.2f %% %8.1f %8.1f\n", plan.label().c_str(), measured.state,
                  theory[i] / 1e6, saved, expected, measured.all, measured.process);
  }
  return good ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
