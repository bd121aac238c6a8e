// Pages that a process holds for its activations beside the largest sum of what lives of them (M_D of ZeRO-R): of
// models and budgets, where micro-batches repeat and small blocks lie as planned, and where each takes a block that no
// other does, so that they come as they do without a plan. A row a process, on one rank and one thread.
//
// Pages: anonymous memory of the process after the last step, beyond what it had before the first micro-batch and what
// the ledger has of states since. Faults: pages that a step was given by the system.
//
//   activation_pages [steps]
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "bench/timing.h"
#include "models/llama.h"
#include "zero/zero.h"

namespace {

std::int64_t anonymous_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;)
    if (word == "Anonymous:") {
      std::int64_t kilobytes = 0;
      file >> kilobytes;
      return 1024 * kilobytes;
    }
  return 0;
}

std::int64_t faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

struct Trained {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor()> loss;
};

Trained llama(const char* preset, std::int64_t batch, std::int64_t sequence) {
  const models::Llama model(models::llama_preset(preset));
  const torch::Tensor ids = torch::randint(model->config().vocab_size, {batch, sequence}, torch::kLong);
  return {model.ptr(), [=]() mutable { return models::Llama(model)->loss(ids, ids); }};
}

// A recurrent network by cells: many blocks, all of them small.
Trained cells(std::int64_t batch, std::int64_t sequence) {
  const torch::nn::GRUCell cell(96, 96);
  const torch::Tensor x = torch::randn({sequence, batch, 96});
  return {cell.ptr(), [=]() mutable {
            torch::Tensor state = torch::zeros({batch, 96}), sum = torch::zeros({});
            for (std::int64_t i = 0; i < sequence; ++i) {
              state = torch::nn::GRUCell(cell)->forward(x[i], state);
              sum = sum + state.sin().mean();
            }
            return sum;
          }};
}

struct Row {
  const char* name;
  std::function<Trained()> make;
  zero::Plan plan;
};

void measure(const Row& row, bool repeats, int steps) {
  zero::init();
  torch::set_num_threads(1);
  torch::manual_seed(0);
  const Trained trained = row.make();
  zero::Engine engine(*trained.module, zero::World(), row.plan, zero::Sgd{});
  malloc_trim(0);
  const std::int64_t before = anonymous_bytes(), states = engine.ledger().held();
  std::int64_t given = 0;
  bench::Clock::time_point start;
  for (int step = 0; step < 2 * steps; ++step) {
    if (step == steps) {
      given = faults();
      start = bench::Clock::now();
    }
    torch::Tensor loss = trained.loss();
    if (!repeats) loss = loss + torch::ones({step + 1}).mean();
    engine.backward(loss);
    loss.reset();
    engine.step();
  }
  const double seconds = bench::seconds_since(start) / steps;
  const std::int64_t pages = anonymous_bytes() - before - (engine.ledger().held() - states);
  const std::int64_t live = engine.ledger()[zero::Owner::activation].peak;
  std::printf("%-34s %-9s %12ld %12ld %7.3f %9ld %9.4f\n", row.name, repeats ? "planned" : "as it is", live, pages,
              static_cast<double>(pages) / static_cast<double>(live), (faults() - given) / steps, seconds);
  std::fflush(stdout);
}

void in_a_process(const std::function<void()>& call) {
  if (const pid_t child = fork(); child != 0) {
    int status = 0;
    waitpid(child, &status, 0);
    return;
  }
  call();
  std::_Exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 6;
  const auto of = [](const char* preset, std::int64_t batch, std::int64_t sequence) {
    return [=] { return llama(preset, batch, sequence); };
  };
  const zero::Plan ddp = zero::Plan::ddp(), zero3 = zero::Plan::zero3();
  const Row rows[] = {
      {"micro 2 x 32, ddp", of("micro", 2, 32), ddp},
      {"micro 8 x 64, zero3", of("micro", 8, 64), zero3},
      {"tiny 1 x 32, zero3", of("tiny", 1, 32), zero3},
      {"tiny 8 x 128, zero3", of("tiny", 8, 128), zero3},
      {"tiny 8 x 128, zero3, bf16", of("tiny", 8, 128), zero3.bf16()},
      {"tiny 8 x 128, zero3, within 25 %", of("tiny", 8, 128), zero3.activation_budget({.share = .25})},
      {"small 2 x 128, ddp", of("small", 2, 128), ddp},
      {"small 2 x 128, zero3, within 25 %", of("small", 2, 128), zero3.activation_budget({.share = .25})},
      {"GRU cells 16 x 1000, zero3", [] { return cells(16, 1000); }, zero3}};
  std::printf("%-34s %-9s %12s %12s %7s %9s %9s\n", "", "blocks", "live", "pages", "ratio", "faults", "seconds");
  std::fflush(stdout);  // before it is each child's too
  for (const Row& row : rows)
    for (const bool repeats : {false, true}) in_a_process([&] { measure(row, repeats, steps); });
}
