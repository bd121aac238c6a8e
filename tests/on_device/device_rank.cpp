// One rank, a process, of a small training on the simulated accelerator: device_rank PLAN PRECISION. Rank 0 prints the
// losses and what the weights add up to, with all their digits.
#include <torch/torch.h>

#include <iostream>

#include "device/accelerator.h"
#include "device/simulated_device.h"
#include "zero/zero.h"

namespace {

constexpr std::int64_t kWidth = 24;

at::Tensor loss_of(torch::nn::Sequential& model, std::int64_t index, const at::Device& device) {
  const at::Tensor input =
      at::randn({5, kWidth}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(index))).to(device);
  return model->forward(input).to(at::kFloat).square().mean();
}

double sum_of(const torch::nn::Sequential& model) {
  const auto scope = zero::gather(model->parameters());
  double sum = 0;
  for (const at::Tensor& parameter : model->parameters())
    sum += parameter.detach().cpu().to(at::kDouble).sum().item<double>();
  return sum;
}

void train(const std::string& plan, const std::string& precision) {
  zero::test::install_simulated_device();
  zero::test::accelerator::set_race_faults(true);
  const zero::World world = zero::init();
  const at::Device device = zero::test::accelerator::device(0);
  torch::manual_seed(world.rank());
  torch::nn::Sequential model(torch::nn::Linear(kWidth, 40), torch::nn::Tanh(), torch::nn::Dropout(0.1),
                              torch::nn::Linear(40, kWidth));
  model->to(device);
  zero::Engine engine(*model, world, zero::Plan::named(plan).precision(zero::precision_named(precision)), zero::AdamW{},
                      {.clip = 0.5});
  std::cout << std::hexfloat;
  for (int step = 0; step < 4; ++step) {
    engine.backward(loss_of(model, engine.micro_batch(), device));
    const zero::StepReport report = engine.step();
    if (world.rank() == 0) std::cout << report.loss << ' ' << report.grad_norm << '\n';
  }
  const double sum = sum_of(model);
  if (world.rank() == 0) std::cout << sum << '\n';
}

}  // namespace

int main(int, char** arguments) try { train(arguments[1], arguments[2]); } catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
