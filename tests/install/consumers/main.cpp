#include <ATen/Context.h>
#include <torch/nn/modules/linear.h>

#include "zero/zero.h"

// The output starts within 2.5 of zero and its target is 4: a step of 0.01 always lowers the loss.
int main() {
  at::manual_seed(1);
  zero::World world = zero::init();
  torch::nn::Linear model(4, 1);
  zero::Engine engine(*model, world, zero::Plan::zero3(), zero::AdamW{.lr = 1e-2});
  const at::Tensor input = at::ones({8, 4});
  double before = 0;
  for (int step = 0; step < 2; ++step) {
    at::Tensor loss = (model->forward(input) - 4).square().mean();
    before = step == 0 ? loss.item<double>() : before;
    engine.backward(loss);
    if (!engine.step().applied || (step == 1 && loss.item<double>() >= before)) return 1;
  }
}
