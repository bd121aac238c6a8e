// The training of ranks.py's TwinOfCpp, from C++: rank 0 prints losses and parameters, to the bit.
#include <torch/nn.h>

#include <cstdio>
#include <string>

#include "zero/zero.h"

namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("norm", norm);
    register_module("linear", linear);
  }
  at::Tensor forward(const at::Tensor& x) { return x + torch::gelu(linear(norm(x))); }
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({24})};
  torch::nn::Linear linear{24, 24};
};
TORCH_MODULE(Block);

struct Net : torch::nn::Module {
  Net() {
    register_module("table", table);
    register_module("blocks", blocks);
    for (int i = 0; i < 3; ++i) blocks->push_back(Block());
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = table(tokens);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(x);
  }
  torch::nn::Embedding table{31, 24};
  torch::nn::ModuleList blocks;
  torch::nn::Linear head{24, 31};
};

at::Tensor tokens_of(std::int64_t micro_batch) {
  torch::manual_seed(static_cast<std::uint64_t>(1000 + micro_batch));
  return torch::randint(31, {4, 9});
}

// Of the bits of fp32.
long long sum_of_bits(const at::Tensor& tensor) {
  const at::Tensor bits = tensor.flatten().view(torch::kInt).to(torch::kLong);
  return (bits * torch::arange(1, bits.numel() + 1)).sum().item<std::int64_t>();
}

void train(const zero::World& world, const std::string& plan) {
  torch::manual_seed(5);
  Net net;
  zero::Engine engine(net, world, zero::Plan::named(plan), zero::AdamW{.lr = 3e-3}, {.clip = 1});
  for (int step = 0; step < 4; ++step) {
    const at::Tensor tokens = tokens_of(engine.micro_batch());
    const at::Tensor logits = net.forward(tokens.narrow(1, 0, 8));
    engine.backward(torch::nn::functional::cross_entropy(logits.flatten(0, 1), tokens.narrow(1, 1, 8).flatten()));
    const zero::StepReport report = engine.step();
    if (world.rank() == 0) std::printf("TWIN %s %a %a\n", plan.c_str(), report.loss, report.grad_norm);
  }
  engine.release();
  for (const auto& parameter : net.named_parameters())
    if (world.rank() == 0)
      std::printf("TWIN %s %s %lld\n", plan.c_str(), parameter.key().c_str(), sum_of_bits(parameter.value().detach()));
}

}  // namespace

int main() {
  torch::set_num_threads(1);
  const zero::World world = zero::init();
  for (const std::string_view plan : zero::Plan::stages()) train(world, std::string(plan));
}
