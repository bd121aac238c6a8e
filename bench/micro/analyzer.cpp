// What zero::MemoryAnalyzer costs: steps of a language model with an engine, watched and not, in turn. Watched are the
// first step, and one after the analyzer has seen that steps repeat themselves.
//
//   analyzer [preset] [rounds] [batch] [sequence]
#include <torch/torch.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "../timing.h"
#include "models/llama.h"
#include "zero/zero.h"

constexpr int kSteps = 5;

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) { return std::string(argc > i ? argv[i] : otherwise); };
  const int rounds = std::atoi(argument(2, "30").c_str());
  const int batch = std::atoi(argument(3, "4").c_str()), sequence = std::atoi(argument(4, "128").c_str());
  torch::set_num_threads(1);
  const zero::World world = zero::init();
  const models::LlamaConfig config = models::llama_preset(argument(1, "tiny"));
  models::Llama model(config);
  zero::Engine engine(*model, world, zero::Plan::zero3(), zero::AdamW{});
  const torch::Tensor ids = torch::randint(0, config.vocab_size, {batch, sequence});
  const auto step = [&] {
    engine.backward(model->loss(ids, ids));
    engine.step();
  };
  const auto some_steps = [&] {
    for (int i = 0; i < kSteps; ++i) step();
  };
  std::optional<zero::MemoryAnalyzer> analyzer;
  bench::Contest contest;
  const std::size_t off = contest.add("off", some_steps);
  const auto idle = contest.add("begins", [&] {
    analyzer.emplace();
    analyzer->watch(engine);
  });
  const std::size_t first = contest.add("first", step);
  contest.add("learns", some_steps);
  const std::size_t on = contest.add("on", some_steps);
  contest.add("ends", [&] { analyzer.reset(); });
  contest.run(rounds);
  std::printf("a step %.2f ms, watched %.2f ms, the first watched %.2f ms, to begin %.3f ms\n",
              1e3 * contest.seconds(off) / kSteps, 1e3 * contest.seconds(on) / kSteps, 1e3 * contest.seconds(first),
              1e3 * contest.seconds(idle));
  const double cost = 100 * (contest.ratio({on}, {off}) - 1);
  std::printf("%s  cost of a watched step: %.2f %%, at most 2 %%\n", cost <= 2 ? "PASS" : "FAIL", cost);
}
