// A character language model on torch::nn::LSTM, written as for plain LibTorch. Training it under
// ZeRO stage 3 adds the lines marked "zero", and nothing to the model. Its argument is the device: cpu, cuda, cuda:1.
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string_view>

#include "zero/devices.h"
#include "zero/zero.h"

namespace {

constexpr std::string_view kText =
    "Memory is what limits the size of a model. Of a replica's memory most is state: parameters, gradients and "
    "the moments of the optimizer. Data parallelism keeps a copy of the state on every rank; a partition keeps "
    "one slice on each, and brings a slice back when it is used. The sum of the slices is one copy, the "
    "arithmetic is the same, and the ranks exchange little more than they did before. ";
constexpr std::int64_t kVocab = 128, kBatch = 8, kLength = 32;
constexpr int kSteps = 60;

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    register_module("table", table);
    register_module("lstm", lstm);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& ids) { return head(std::get<0>(lstm(table(ids)))); }

  torch::nn::Embedding table{kVocab, 32};
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(32, 64).num_layers(2).batch_first(true)};
  torch::nn::Linear head{64, kVocab};
};
TORCH_MODULE(Model);

// kBatch pieces of the text, chosen by `index`, of kLength characters and the one that follows.
torch::Tensor draw(std::int64_t index) {
  torch::Tensor rows = torch::empty({kBatch, kLength + 1}, torch::kLong);
  auto random = torch::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(index));
  torch::Tensor starts = torch::randint(static_cast<std::int64_t>(kText.size()) - kLength, {kBatch}, random);
  for (std::int64_t i = 0; i < kBatch; ++i)
    for (std::int64_t j = 0; j <= kLength; ++j)
      rows[i][j] = static_cast<std::int64_t>(kText[static_cast<std::size_t>(starts[i].item<std::int64_t>() + j)]);
  return rows;
}

int train(torch::Device wanted) {
  zero::World world = zero::init();                             // zero
  const torch::Device device = zero::device_of(world, wanted);  // zero: each rank its own
  torch::manual_seed(0);
  Model model;
  model->to(device);
  zero::Engine engine(*model, world, zero::Plan::zero3(), zero::AdamW{.lr = 1e-2});  // zero
  double first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    auto rows = draw(engine.micro_batch()).to(device);  // zero: each rank its own
    auto logits = model->forward(rows.slice(1, 0, kLength)).flatten(0, 1);
    auto loss = torch::nn::functional::cross_entropy(logits, rows.slice(1, 1).flatten());
    engine.backward(loss);      // zero
    last = engine.step().loss;  // zero
    if (step == 0) first = last;
    if (world.rank() == 0 && step % 10 == 9) std::printf("step %2d  loss %.4f\n", step + 1, last);
  }
  return last < 0.75 * first ? 0 : 1;
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
