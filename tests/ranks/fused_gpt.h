// A small GPT whose layers are several in one, and how it is cut over a tensor axis.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <memory>

#include "harness.h"

namespace zero::test {

// As GPTs are written that are read in an afternoon.
struct FusedBlockImpl : torch::nn::Module {
  static constexpr std::int64_t kSize = 16, kHeads = 4, kLength = 6, kWide = 32;

  explicit FusedBlockImpl(double dropout)
      : c_attn(register_module("c_attn", torch::nn::Linear(kSize, 3 * kSize))),
        c_proj(register_module("c_proj", torch::nn::Linear(kSize, kSize))),
        gate_up(register_module("gate_up", torch::nn::Linear(torch::nn::LinearOptions(kSize, 2 * kWide).bias(false)))),
        down(register_module("down", torch::nn::Linear(kWide, kSize))),
        before(register_module("before", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kSize})))),
        behind(register_module("behind", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kSize})))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        mask(register_buffer("mask", torch::ones({kLength, kLength}).tril().view({1, 1, kLength, kLength}))) {}

  static at::Tensor heads(const at::Tensor& x) {
    return x.view({x.size(0), x.size(1), kHeads, kSize / kHeads}).transpose(1, 2);
  }
  at::Tensor attended(const at::Tensor& x) {
    const auto qkv = c_attn(x).split(kSize, 2);
    const at::Tensor q = heads(qkv[0]), k = heads(qkv[1]), v = heads(qkv[2]);
    const at::Tensor scores = q.matmul(k.transpose(-2, -1)) * (1 / std::sqrt(static_cast<double>(k.size(-1))));
    const at::Tensor masked = scores.masked_fill(mask == 0, -std::numeric_limits<double>::infinity());
    const at::Tensor y = drop(masked.softmax(-1)).matmul(v);
    return c_proj(y.transpose(1, 2).contiguous().view(x.sizes()));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor after = x + attended(before(x));
    const auto halves = gate_up(behind(after)).chunk(2, -1);
    return after + drop(down(torch::silu(halves[0]) * halves[1]));
  }

  torch::nn::Linear c_attn, c_proj, gate_up, down;
  torch::nn::LayerNorm before, behind;
  torch::nn::Dropout drop;
  at::Tensor mask;
};
TORCH_MODULE(FusedBlock);

struct Fused : torch::nn::Module {
  static constexpr std::int64_t kVocabulary = 24;
  explicit Fused(double dropout = 0)
      : words(register_module("words", torch::nn::Embedding(kVocabulary, FusedBlockImpl::kSize))),
        blocks(register_module("blocks", torch::nn::Sequential())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({FusedBlockImpl::kSize})))) {
    for (int i = 0; i < 2; ++i) blocks->push_back(FusedBlock(dropout));
  }
  at::Tensor loss(std::int64_t index) {
    const at::Tensor ids = tokens(index, {2, FusedBlockImpl::kLength + 1}, kVocabulary);
    const at::Tensor hidden = norm(blocks->forward(words(ids.slice(1, 0, -1))));
    const at::Tensor logits = torch::nn::functional::linear(hidden, words->weight);
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.slice(1, 1).flatten());
  }
  torch::nn::Embedding words;
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm;
};

inline const TensorRule kFused = tensor_named({{"*.c_attn", TensorCut::column.in_blocks(3)},
                                               {"*.c_proj", TensorCut::row},
                                               {"*.gate_up", TensorCut::column.in_blocks(2)},
                                               {"*.down", TensorCut::row},
                                               {"words", TensorCut::column}});

inline Course<Fused> fused_with_dropout() {
  return {.make = [] { return std::make_shared<Fused>(.1); }};
}

}  // namespace zero::test
