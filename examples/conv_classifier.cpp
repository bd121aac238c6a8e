// A convolutional classifier of generated shapes, written as for plain LibTorch. Training it under
// ZeRO stage 3 adds the lines marked "zero", and nothing to the model. Its argument is the device: cpu, cuda, cuda:1.
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "zero/devices.h"
#include "zero/zero.h"

namespace {

constexpr std::int64_t kSide = 16, kBatch = 16, kClasses = 3;  // bars across, bars down, squares
constexpr int kSteps = 40;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("features", features);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(features->forward(x).flatten(1)); }

  torch::nn::Sequential features{torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)),
                                 torch::nn::BatchNorm2d(16),
                                 torch::nn::ReLU(),
                                 torch::nn::MaxPool2d(2),
                                 torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)),
                                 torch::nn::BatchNorm2d(32),
                                 torch::nn::ReLU(),
                                 torch::nn::AdaptiveAvgPool2d(4)};
  torch::nn::Linear head{32 * 4 * 4, kClasses};
};
TORCH_MODULE(Net);

torch::data::Example<> draw(std::int64_t index) {
  auto random = torch::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(index));
  torch::Tensor images = 0.3 * torch::randn({kBatch, 1, kSide, kSide}, random);
  torch::Tensor labels = torch::randint(kClasses, {kBatch}, random, torch::kLong);
  torch::Tensor corners = torch::randint(kSide - 8, {kBatch, 2}, random, torch::kLong);
  for (std::int64_t i = 0; i < kBatch; ++i) {
    const auto shape = labels[i].item<std::int64_t>();
    const auto height = shape == 0 ? 2 : 8, width = shape == 1 ? 2 : 8;
    images[i][0]
        .narrow(0, corners[i][0].item<std::int64_t>(), height)
        .narrow(1, corners[i][1].item<std::int64_t>(), width) += 1;
  }
  return {images, labels};
}

int train(torch::Device wanted) {
  zero::World world = zero::init();                             // zero
  const torch::Device device = zero::device_of(world, wanted);  // zero: each rank its own
  torch::manual_seed(0);
  Net net;
  net->to(device);
  zero::Engine engine(*net, world, zero::Plan::zero3(), zero::AdamW{.lr = 3e-3});  // zero
  double first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    auto [images, labels] = draw(engine.micro_batch());  // zero: each rank its own
    auto loss = torch::nn::functional::cross_entropy(net->forward(images.to(device)), labels.to(device));
    engine.backward(loss);      // zero
    last = engine.step().loss;  // zero
    if (step == 0) first = last;
    if (world.rank() == 0 && step % 10 == 9) std::printf("step %2d  loss %.4f\n", step + 1, last);
  }
  return last < first / 2 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(argc > 1 ? torch::Device(argv[1]) : zero::usual_device());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
