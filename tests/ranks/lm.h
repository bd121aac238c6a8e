// The main model of the tests, as a user writes it: odd sizes, a head tied to the embedding, dropout,
// a frozen layer, blocks as children of a Sequential, a parameter of its own.
#pragma once

#include "harness.h"
#include "zero/activations.h"

namespace zero::test {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(double dropout)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({13})))),
        up(register_module("up", torch::nn::Linear(13, 17))),
        down(register_module("down", torch::nn::Linear(17, 13))),
        drop(register_module("drop", torch::nn::Dropout(dropout))) {}
  at::Tensor forward(const at::Tensor& x) { return x + drop(down(torch::gelu(up(norm(x))))); }

  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
  torch::nn::Dropout drop;
};
TORCH_MODULE(Block);

struct Lm : torch::nn::Module {
  static constexpr std::int64_t kVocabulary = 29;

  explicit Lm(double dropout = 0)
      : embed(register_module("embed", torch::nn::Embedding(kVocabulary, 13))),
        fixed(register_module("fixed", torch::nn::Linear(13, 13))),
        blocks(register_module("blocks", torch::nn::Sequential())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({13})))),
        bias(register_parameter("bias", torch::zeros({kVocabulary}))) {
    for (int i = 0; i < 3; ++i) blocks->push_back(Block(dropout));
    for (at::Tensor& parameter : fixed->parameters()) parameter.set_requires_grad(false);
  }

  at::Tensor hidden(at::Tensor x) {
    for (std::size_t i = 0; i < blocks->size(); ++i) {
      const auto block = blocks->ptr<BlockImpl>(i);
      x = checkpoints ? checkpoint(block, x) : block->forward(x);
    }
    return x;
  }

  at::Tensor logits(const at::Tensor& ids) {
    return torch::nn::functional::linear(norm(hidden(fixed(embed(ids)))), embed->weight, bias);
  }

  at::Tensor loss(std::int64_t index) {
    const at::Tensor ids = tokens(index, {3, 7}, kVocabulary).to(bias.device());
    return torch::nn::functional::cross_entropy(logits(ids.slice(1, 0, 6)).flatten(0, 1), ids.slice(1, 1).flatten());
  }

  torch::nn::Embedding embed;
  torch::nn::Linear fixed;
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm;
  at::Tensor bias;
  bool checkpoints = false;  // blocks are computed again in backward
};

inline Course<Lm> lm_with_dropout(double dropout) {
  return {.make = [dropout] { return std::make_shared<Lm>(dropout); }};
}

}  // namespace zero::test
