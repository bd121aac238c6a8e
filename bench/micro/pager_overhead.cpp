// What paging costs when there is nothing to page: one training step under zero3 on one rank, where
// everything is resident, against the same model's step in plain LibTorch. Both take their steps in
// turn, so that a machine that changes its speed changes it for both.
//
//   pager_overhead [preset] [rounds] [batch] [sequence]
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "models/llama.h"
#include "zero/zero.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print(const char* what, const std::vector<double>& ours, const std::vector<double>& theirs) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / theirs[i]);
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  std::printf("%-18s zero3 %.4f s  plain %.4f s  ratio %.3f (%.3f to %.3f)\n", what, median(ours), median(theirs),
              median(ratios), *low, *high);
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) { return std::string(argc > i ? argv[i] : otherwise); };
  const int rounds = std::atoi(argument(2, "20").c_str());
  const int batch = std::atoi(argument(3, "2").c_str());
  const int sequence = std::atoi(argument(4, "128").c_str());
  torch::set_num_threads(1);
  const models::LlamaConfig config = models::llama_preset(argument(1, "small"));
  torch::manual_seed(0);
  models::Llama ours(config);
  torch::manual_seed(0);
  models::Llama plain(config);
  const zero::AdamW adamw{.lr = 3e-4, .beta2 = 0.95, .weight_decay = 0.1};
  zero::Engine engine(*ours, zero::World(), zero::Plan::zero3(), adamw);
  torch::optim::AdamW optimizer(plain->parameters(),
                                torch::optim::AdamWOptions(adamw.lr).betas({0.9, 0.95}).weight_decay(0.1));
  const torch::Tensor tokens = torch::randint(0, config.vocab_size, {batch, sequence + 1});
  const torch::Tensor inputs = tokens.slice(1, 0, sequence).contiguous();
  const torch::Tensor targets = tokens.slice(1, 1).contiguous();

  std::vector<double> our_pass, our_update, our_step, plain_pass, plain_update, plain_step;
  double our_loss = 0;
  double plain_loss = 0;
  for (int round = -2; round < rounds; ++round) {
    const double a = seconds_of([&] { engine.backward(ours->loss(inputs, targets)); });
    const double b = seconds_of([&] { our_loss = engine.step().loss; });
    const double c = seconds_of([&] {
      const torch::Tensor loss = plain->loss(inputs, targets);
      loss.backward();
      plain_loss = loss.item<double>();
    });
    const double d = seconds_of([&] {
      optimizer.step();
      optimizer.zero_grad();
    });
    if (round < 0) continue;
    our_pass.push_back(a);
    our_update.push_back(b);
    our_step.push_back(a + b);
    plain_pass.push_back(c);
    plain_update.push_back(d);
    plain_step.push_back(c + d);
  }
  std::printf("%s, batch %d x %d, %d rounds; last losses %.6f and %.6f\n", argument(1, "small").c_str(), batch,
              sequence, rounds, our_loss, plain_loss);
  print("forward, backward", our_pass, plain_pass);
  print("update", our_update, plain_update);
  print("whole step", our_step, plain_step);
}
