// What a budget for activations costs an operator, where it drops nothing: forwards and backwards of a chain of small
// products, without a budget, within one that is kept to by a plan, and where each is recorded since none is like the
// one before. One rank, one thread.
//
//   activation_recording [rounds] [layers]
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "bench/timing.h"
#include "zero/zero.h"

namespace {

constexpr std::int64_t kWidth = 32, kRows = 64;  // 8 KiB a tensor

struct Chain : torch::nn::Module {
  explicit Chain(int layers) {
    for (int i = 0; i < layers; ++i)
      linears.push_back(register_module("linear" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
  }
  // Each number's operators have another order of arguments.
  torch::Tensor forward(torch::Tensor x, unsigned number) {
    for (auto& linear : linears) {
      const torch::Tensor y = torch::relu(linear(x));
      x = number % 2 == 0 ? x + y : y + x;
      number /= 2;
    }
    return x.square().mean();
  }
  std::vector<torch::nn::Linear> linears;
};

enum class Way { without, planned, recorded };

struct Contender {
  Contender(int layers, Way its_way) : way(its_way), chain(std::make_shared<Chain>(layers)) {
    zero::Plan plan = zero::Plan::ddp();
    if (way != Way::without) plan = plan.activation_budget({.share = 1});
    engine = std::make_unique<zero::Engine>(*chain, zero::World(), plan, zero::Sgd{.lr = 1e-3});
  }
  void step() {
    engine->backward(chain->forward(x, way == Way::recorded ? number++ : 0));
    engine->step();
  }

  Way way;
  std::shared_ptr<Chain> chain;
  std::unique_ptr<zero::Engine> engine;
  torch::Tensor x = torch::randn({kRows, kWidth});
  unsigned number = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200, layers = argc > 2 ? std::atoi(argv[2]) : 64;
  torch::set_num_threads(1);
  Contender without(layers, Way::without), planned(layers, Way::planned), recorded(layers, Way::recorded);
  bench::Contest contest;
  for (Contender* const each : {&without, &planned, &recorded}) contest.add("", [each] { each->step(); });
  contest.run(rounds, /*warm_ups=*/8);
  const auto operators = static_cast<double>(planned.engine->activations().operators);
  const auto more = [&](std::size_t i) { return (contest.seconds(i) - contest.seconds(0)) / operators * 1e6; };
  std::printf("%.0f operators; a step without a budget %.3f ms, by a plan %.3f ms, recorded %.3f ms\n", operators,
              1e3 * contest.seconds(0), 1e3 * contest.seconds(1), 1e3 * contest.seconds(2));
  std::printf("an operator: %.2f us more by a plan, %.2f us more recorded\n", more(1), more(2));
}
