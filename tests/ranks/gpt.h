// A small GPT of others' making, and what of it is cut over a tensor axis.
#pragma once

#include <torch/torch.h>

#include <memory>

#include "harness.h"

namespace zero::test {

// A block of a GPT as users write it: projections of their own, views by the number of heads, dropout, a residual.
struct GptBlockImpl : torch::nn::Module {
  static constexpr std::int64_t kSize = 16, kHeads = 4;

  explicit GptBlockImpl(double dropout)
      : before(register_module("before", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kSize})))),
        q(register_module("q", torch::nn::Linear(kSize, kSize))),
        k(register_module("k", torch::nn::Linear(kSize, kSize))),
        v(register_module("v", torch::nn::Linear(kSize, kSize))),
        o(register_module("o", torch::nn::Linear(kSize, kSize))),
        behind(register_module("behind", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kSize})))),
        up(register_module("up", torch::nn::Linear(kSize, 4 * kSize))),
        down(register_module("down", torch::nn::Linear(4 * kSize, kSize))),
        drop(register_module("drop", torch::nn::Dropout(dropout))) {}

  at::Tensor heads(const at::Tensor& x) {
    return x.view({x.size(0), x.size(1), kHeads, kSize / kHeads}).transpose(1, 2);
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = before(x);
    const at::Tensor attended = at::scaled_dot_product_attention(heads(q(y)), heads(k(y)), heads(v(y)), {}, 0, true);
    const at::Tensor after = x + drop(o(attended.transpose(1, 2).reshape(x.sizes())));
    return after + drop(down(drop(torch::gelu(up(behind(after))))));
  }

  torch::nn::LayerNorm before;
  torch::nn::Linear q, k, v, o;
  torch::nn::LayerNorm behind;
  torch::nn::Linear up, down;
  torch::nn::Dropout drop;
};
TORCH_MODULE(GptBlock);

// Its head is tied to the table of its words.
struct Gpt : torch::nn::Module {
  static constexpr std::int64_t kVocabulary = 24;

  explicit Gpt(double dropout = 0)
      : words(register_module("words", torch::nn::Embedding(kVocabulary, GptBlockImpl::kSize))),
        blocks(register_module("blocks", torch::nn::Sequential())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({GptBlockImpl::kSize})))) {
    for (int i = 0; i < 2; ++i) blocks->push_back(GptBlock(dropout));
  }

  at::Tensor loss(std::int64_t index) {
    const at::Tensor ids = tokens(index, {2, 7}, kVocabulary);
    const at::Tensor hidden = norm(blocks->forward(words(ids.slice(1, 0, 6))));
    const at::Tensor logits = torch::nn::functional::linear(hidden, words->weight);
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.slice(1, 1).flatten());
  }

  torch::nn::Embedding words;
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm;
};

inline const TensorRule kCut = tensor_named({{"*.q", TensorCut::column},
                                             {"*.k", TensorCut::column},
                                             {"*.v", TensorCut::column},
                                             {"*.o", TensorCut::row},
                                             {"*.up", TensorCut::column},
                                             {"*.down", TensorCut::row},
                                             {"words", TensorCut::column}});

inline Course<Gpt> gpt_with_dropout() {
  return {.make = [] { return std::make_shared<Gpt>(.1); }};
}

inline Job cut_job(Job job, int tensor) {
  job.options.tensor = kCut;
  job.tensor = tensor;
  job.ranks *= tensor;
  return job;
}

}  // namespace zero::test
