// What a tensor axis costs beside what is cut over it: operators on tensors that are not cut, and a Llama whose cut
// dimensions are computed with in four tiles, on one rank, so that nothing moves. One thread.
//
//   tensor_axis [rounds] [layers]
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "bench/timing.h"
#include "models/llama.h"
#include "zero/zero.h"

namespace {

constexpr std::int64_t kWidth = 32, kRows = 64;  // 8 KiB a tensor

struct Chain : torch::nn::Module {
  explicit Chain(int layers) {
    for (int i = 0; i < layers; ++i)
      linears.push_back(register_module("linear" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
  }
  torch::Tensor loss() {
    torch::Tensor y = x;
    for (auto& linear : linears) y = y + torch::relu(linear(y));
    return (y.square().mean() + cut(x).square().mean());
  }
  std::vector<torch::nn::Linear> linears;
  torch::nn::Linear cut = register_module("cut", torch::nn::Linear(kWidth, kWidth));
  torch::Tensor x = torch::randn({kRows, kWidth});
};

struct Llama : torch::nn::Module {
  explicit Llama(const char* preset) : config(models::llama_preset(preset)) {
    config.num_hidden_layers = 4;
    llama = register_module("llama", models::Llama(config));
    ids = torch::randint(config.vocab_size, {4, 256}, torch::kLong);
  }
  torch::Tensor loss() { return llama->loss(ids, ids); }
  models::LlamaConfig config;
  models::Llama llama{nullptr};
  torch::Tensor ids;
};

template <class Model>
struct Contender {
  Contender(std::shared_ptr<Model> given, const zero::Options& options, const zero::Plan& plan = zero::Plan::ddp())
      : model(std::move(given)), engine(*model, zero::World(), plan, zero::Sgd{.lr = 1e-3}, options) {}
  void step() {
    engine.backward(model->loss());
    engine.step();
  }
  std::shared_ptr<Model> model;
  zero::Engine engine;
};

double operators_of(int layers) {
  Contender<Chain> counted(std::make_shared<Chain>(layers), {}, zero::Plan::ddp().activation_budget({.share = 1}));
  for (int step = 0; step < 3; ++step) counted.step();
  return static_cast<double>(counted.engine.activations().operators);
}

void beside_what_is_cut(int rounds, int layers) {
  const zero::Options options{.tensor = zero::tensor_named({{"cut", zero::TensorCut::column}}), .tensor_grain = 2};
  const double operators = operators_of(layers);
  Contender<Chain> without(std::make_shared<Chain>(layers), {}), with(std::make_shared<Chain>(layers), options);
  bench::Contest contest;
  for (auto* const each : {&without, &with}) contest.add("", [each] { each->step(); });
  contest.run(rounds, /*warm_ups=*/8);
  std::printf("%.0f operators; a step without an axis %.3f ms, with one %.3f ms: %.2f us more an operator\n", operators,
              1e3 * contest.seconds(0), 1e3 * contest.seconds(1),
              1e6 * (contest.seconds(1) - contest.seconds(0)) / operators);
}

void in_tiles(const char* preset, int rounds) {
  const zero::Options options{.tensor = models::llama_cuts(), .tensor_grain = 4};
  Contender<Llama> without(std::make_shared<Llama>(preset), {}), with(std::make_shared<Llama>(preset), options);
  bench::Contest contest;
  for (auto* const each : {&without, &with}) contest.add("", [each] { each->step(); });
  contest.run(rounds, /*warm_ups=*/2);
  std::printf("%s, 4 layers: a step %.1f ms, in 4 tiles %.1f ms: %.3f\n", preset, 1e3 * contest.seconds(0),
              1e3 * contest.seconds(1), contest.seconds(1) / contest.seconds(0));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200, layers = argc > 2 ? std::atoi(argv[2]) : 64;
  torch::set_num_threads(1);
  beside_what_is_cut(rounds, layers);
  for (const char* const preset : {"tiny", "small"}) in_tiles(preset, std::max(rounds / 20, 3));
}
