// Where the memory goes, and what each stage of ZeRO saves: three linear layers of 2048, a batch of 32, Adam in fp32.
//   zero launch -n 4 --no-prefix memory_savings
#include <malloc.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>

#include "zero/zero.h"

namespace {

constexpr std::int64_t kWidth = 2048, kBatch = 32;

double megabytes(const char* file, const std::string& field) {
  std::ifstream in(file);
  for (std::string word; in >> word;)
    if (double kib = 0; word == field && in >> kib) return kib * 1024 / 1e6;
  return 0;
}

// Resident memory; of what ranks share, each has its part.
double process(const char* field) {
  const char* const status = "/proc/self/status";
  return megabytes(status, field) - megabytes(status, "RssShmem:") + megabytes("/proc/self/smaps_rollup", "Pss_Shmem:");
}

// MB of this rank: model state; with activations and buffers; above the start.
struct Measured {
  double state, all, process;
};

Measured train(const zero::World& world, const zero::Plan& plan, double before) {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts over
  torch::manual_seed(0);
  using namespace torch::nn;
  auto model = zero::deferred([] {
    return Sequential(Linear(kWidth, kWidth), ReLU(), Linear(kWidth, kWidth), ReLU(), Linear(kWidth, kWidth));
  });
  zero::Engine engine(*model, world, plan, zero::Adam{.lr = 1e-3});
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(engine.micro_batch()));
    const auto x = torch::randn({kBatch, kWidth}), y = torch::randn({kBatch, kWidth});
    engine.backward(torch::mse_loss(model->forward(x), y));
    engine.step();
  }
  const zero::Ledger ledger = engine.ledger();
  using enum zero::Owner;
  const std::int64_t state = ledger[parameter].bytes + ledger[gradient].bytes + ledger[optimizer].bytes;
  const double resident = process("VmHWM:") - before;
  world.communicator().barrier().wait();  // what a rank shares is its alone once the others have given it back
  return {static_cast<double>(state) / 1e6, static_cast<double>(ledger.peak_total) / 1e6, resident};
}

int run() {
  const zero::World world = zero::init();
  const double psi = 3 * (kWidth * kWidth + kWidth), n = world.size();
  const double theory[] = {16 * psi, 8 * psi + 8 * psi / n, 4 * psi + 12 * psi / n, 16 * psi / n};
  if (world.rank() == 0)
    std::printf("%d ranks, %.0f parameters, fp32, Adam; MB of a rank\n\n%-6s %8s %8s %8s %8s %8s %8s\n", world.size(),
                psi, "plan", "state", "theory", "saved", "theory", "peak", "process");
  const double before = process("VmRSS:");
  Measured measured[4];
  for (std::size_t i = 4; i-- > 0;)  // the smallest first, so that no run finds memory that a larger one left behind
    measured[i] = train(world, zero::Plan::named(zero::Plan::stages()[i]), before);
  bool good = true;
  for (std::size_t i = 0; i < 4; ++i) {
    const auto [state, all, resident] = measured[i];
    const double saved = 100 * (1 - state / measured[0].state), expected = 100 * (1 - theory[i] / theory[0]);
    good = good && saved > expected - 0.2 && (i == 0 || n == 1 || resident < measured[i - 1].process);
    if (world.rank() == 0)
      std::printf("%-6s %8.1f %8.1f %6.2f %% %6.2f %% %8.1f %8.1f\n", zero::Plan::stages()[i].data(), state,
                  theory[i] / 1e6, saved, expected, all, resident);
  }
  return good ? 0 : 1;
}

}  // namespace

int main() try { return run(); } catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
