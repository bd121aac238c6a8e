// A Llama-style language model in plain LibTorch: RMSNorm, rotary embedding, grouped-query attention,
// SwiGLU, no biases. Parameters are named and laid out as Hugging Face's LlamaForCausalLM.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <memory>

#include "models/llama_config.h"
#include "zero/tensor_rule.h"

namespace models {

class LlamaBodyImpl;

// Weights start as normal(0, initializer_range) from the default generator, norms as one. Throws
// zero::ConfigError for sizes that cannot work.
class LlamaImpl : public torch::nn::Module {
 public:
  explicit LlamaImpl(const LlamaConfig& config);

  // ids [B, T] of int64 to logits [B, T, vocab_size] in the weights' dtype.
  // Throws zero::ConfigError when T exceeds max_position_embeddings.
  at::Tensor forward(const at::Tensor& ids);

  // Mean cross entropy of the logits of `ids` to `targets` [B, T], in fp32 (fp64 for fp64 weights).
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets);

  const LlamaConfig& config() const { return config_; }

 private:
  at::Tensor hidden(const at::Tensor& ids);
  const at::Tensor& head() const;

  LlamaConfig config_;
  std::shared_ptr<LlamaBodyImpl> model_;
  torch::nn::Linear lm_head_{nullptr};  // empty when tied
};
TORCH_MODULE(Llama);

// What of it is cut over a tensor axis: as part_of() has it.
zero::TensorRule llama_cuts();

}  // namespace models
