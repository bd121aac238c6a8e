#include <torch/nn/modules/linear.h>

#include "zero/zero.h"

int main() {
  zero::World world = zero::init();
  torch::nn::Linear model(4, 1);
  zero::Engine engine(*model, world, zero::Plan::zero3(), zero::AdamW{.lr = 1e-2});
  const at::Tensor input = at::ones({8, 4});
  double before = 0;
  for (int step = 0; step < 2; ++step) {
    at::Tensor loss = model->forward(input).square().mean();
    before = step == 0 ? loss.item<double>() : before;
    engine.backward(loss);
    if (!engine.step().applied || loss.item<double>() > before) return 1;
  }
}
