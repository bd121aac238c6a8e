// What paging costs when there is nothing to page: one training step under zero3 on one rank, where everything is
// resident, against the same model's step in plain LibTorch; and what it costs that an engine hears `loss.backward()`,
// against `engine.backward(loss)`. All take their steps in turn, so that a machine that changes its speed changes it
// for all.
//
// On a device each pass and each update is timed to where the device has done it.
//
//   pager_overhead [preset] [rounds] [batch] [sequence] [device]
#include <torch/cuda.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "models/llama.h"
#include "zero/zero.h"

namespace {

const zero::AdamW kAdamW{.lr = 3e-4, .beta2 = 0.95, .weight_decay = 0.1};

models::Llama seeded(const models::LlamaConfig& config, const torch::Device& device) {
  torch::manual_seed(0);
  models::Llama model(config);
  model->to(device);
  return model;
}

// What the device has been given to do is done when this returns.
void finish(const torch::Device& device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

// Its passes and its updates, which are timed apart.
struct Contender {
  std::size_t pass, update;
};

void print(const char* what, const bench::Contest& contest, const std::vector<std::size_t>& parts,
           const std::vector<std::size_t>& others) {
  const std::vector<double> ratios = contest.ratios(parts, others);
  std::printf("  %-18s %.4f s over %.4f s: %.3f (%.3f to %.3f)\n", what, contest.seconds(parts),
              contest.seconds(others), bench::median(ratios), ratios.front(), ratios.back());
}

void compare(const char* what, const bench::Contest& contest, const Contender& one, const Contender& other) {
  std::printf("%s\n", what);
  print("forward, backward", contest, {one.pass}, {other.pass});
  print("update", contest, {one.update}, {other.update});
  print("whole step", contest, {one.pass, one.update}, {other.pass, other.update});
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) { return std::string(argc > i ? argv[i] : otherwise); };
  const std::int64_t batch = std::atoi(argument(3, "2").c_str()), sequence = std::atoi(argument(4, "128").c_str());
  torch::set_num_threads(1);
  const models::LlamaConfig config = models::llama_preset(argument(1, "small"));
  const torch::Device device(argument(5, "cpu"));
  models::Llama told = seeded(config, device), heard = seeded(config, device), plain = seeded(config, device);
  zero::Engine teller(*told, zero::World(), zero::Plan::zero3(), kAdamW);
  zero::Engine hearer(*heard, zero::World(), zero::Plan::zero3(), kAdamW);
  torch::optim::AdamW optimizer(plain->parameters(),
                                torch::optim::AdamWOptions(kAdamW.lr).betas({0.9, 0.95}).weight_decay(0.1));
  const torch::Tensor tokens = torch::randint(0, config.vocab_size, {batch, sequence + 1}).to(device);
  const torch::Tensor inputs = tokens.slice(1, 0, sequence).contiguous();
  const torch::Tensor targets = tokens.slice(1, 1).contiguous();

  double losses[3] = {};
  const auto backward = [&](models::Llama& model, double& value) {
    const torch::Tensor loss = model->loss(inputs, targets);
    loss.backward();
    value = loss.item<double>();
  };
  bench::Contest contest;
  const auto timed = [&](const char* name, const std::function<void()>& work) {
    return contest.add(name, [work, device] {
      work();
      finish(device);
    });
  };
  const Contender by_engine{timed("pass", [&] { teller.backward(told->loss(inputs, targets)); }),
                            timed("update", [&] { losses[0] = teller.step().loss; })};
  const Contender by_loss{timed("pass", [&] { backward(heard, losses[1]); }), timed("update", [&] { hearer.step(); })};
  const Contender in_plain{timed("pass", [&] { backward(plain, losses[2]); }), timed("update", [&] {
                             optimizer.step();
                             optimizer.zero_grad();
                           })};
  contest.run(std::atoi(argument(2, "20").c_str()));
  std::printf("%s, batch %ld x %ld; last losses %.6f, %.6f and %.6f; medians (lowest to highest)\n",
              argument(1, "small").c_str(), batch, sequence, losses[0], losses[1], losses[2]);
  compare("engine.backward(loss) under zero3 over plain LibTorch", contest, by_engine, in_plain);
  compare("loss.backward() under zero3 over plain LibTorch", contest, by_loss, in_plain);
  compare("loss.backward() over engine.backward(loss)", contest, by_loss, by_engine);
}
