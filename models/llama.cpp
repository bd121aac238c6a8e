#include "models/llama.h"

#include <ATen/ATen.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "zero/activations.h"
#include "zero/cross_entropy.h"
#include "zero/error.h"

namespace models {

namespace nn = torch::nn;

class RmsNormImpl : public nn::Module {
 public:
  RmsNormImpl(std::int64_t size, double eps) : eps_(eps), weight_(register_parameter("weight", torch::ones(size))) {}

  at::Tensor forward(const at::Tensor& x) { return at::rms_norm(x, weight_.sizes(), weight_, eps_); }

 private:
  double eps_;
  at::Tensor weight_;
};
TORCH_MODULE(RmsNorm);

namespace {

nn::Linear projection(std::int64_t in, std::int64_t out) {
  return nn::Linear(nn::LinearOptions(in, out).bias(false));
}

// Rows of cosines and sines, one per position; the two halves of a head turn by the same angles.
struct Rotary {
  at::Tensor cos;
  at::Tensor sin;

  Rotary(const LlamaConfig& config, std::int64_t length, const at::Tensor& like) {
    const auto fp32 = like.options().dtype(at::kFloat).requires_grad(false);
    const at::Tensor frequencies = at::tensor(config.rotary_frequencies(), fp32);
    const at::Tensor angles = at::outer(at::arange(length, fp32), frequencies);
    cos = at::cat({angles, angles}, -1).cos().to(like.scalar_type());
    sin = at::cat({angles, angles}, -1).sin().to(like.scalar_type());
  }

  at::Tensor turn(const at::Tensor& x) const {
    const auto halves = x.chunk(2, -1);
    return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
  }
};

class AttentionImpl : public nn::Module {
 public:
  explicit AttentionImpl(const LlamaConfig& config)
      : head_(config.head_size()), grouped_(config.num_key_value_heads != config.num_attention_heads) {
    const std::int64_t query = config.num_attention_heads * head_;
    const std::int64_t key_value = config.num_key_value_heads * head_;
    q_ = register_module("q_proj", projection(config.hidden_size, query));
    k_ = register_module("k_proj", projection(config.hidden_size, key_value));
    v_ = register_module("v_proj", projection(config.hidden_size, key_value));
    o_ = register_module("o_proj", projection(query, config.hidden_size));
  }

  at::Tensor forward(const at::Tensor& x, const Rotary& rotary) {
    const at::Tensor y = at::scaled_dot_product_attention(rotary.turn(heads(q_(x))), rotary.turn(heads(k_(x))),
                                                          heads(v_(x)), {}, 0.0, true, {}, grouped_);
    return o_(y.transpose(1, 2).flatten(2));
  }

 private:
  // [B, T, heads * head] to [B, heads, T, head].
  at::Tensor heads(const at::Tensor& x) const { return x.unflatten(-1, {-1, head_}).transpose(1, 2); }

  std::int64_t head_;
  bool grouped_;
  nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr};
};
TORCH_MODULE(Attention);

std::vector<at::Tensor> gated(const std::vector<at::Tensor>& gate_and_up) {
  return {at::silu(gate_and_up[0]) * gate_and_up[1]};
}

class MlpImpl : public nn::Module {
 public:
  explicit MlpImpl(const LlamaConfig& config)
      : again_(config.activations.recompute == Recompute::selective),
        gate_(register_module("gate_proj", projection(config.hidden_size, config.intermediate_size))),
        up_(register_module("up_proj", projection(config.hidden_size, config.intermediate_size))),
        down_(register_module("down_proj", projection(config.intermediate_size, config.hidden_size))) {}

  at::Tensor forward(const at::Tensor& x) {
    const std::vector<at::Tensor> inner{gate_(x), up_(x)};
    return down_((again_ ? zero::checkpoint(gated, inner) : gated(inner)).front());
  }

 private:
  bool again_;
  nn::Linear gate_, up_, down_;
};
TORCH_MODULE(Mlp);

class LlamaLayerImpl : public nn::Module {
 public:
  explicit LlamaLayerImpl(const LlamaConfig& config)
      : input_norm_(register_module("input_layernorm", RmsNorm(config.hidden_size, config.rms_norm_eps))),
        attention_(register_module("self_attn", Attention(config))),
        middle_norm_(register_module("post_attention_layernorm", RmsNorm(config.hidden_size, config.rms_norm_eps))),
        mlp_(register_module("mlp", Mlp(config))) {}

  at::Tensor forward(const at::Tensor& x, const Rotary& rotary) {
    const at::Tensor attended = x + attention_(input_norm_(x), rotary);
    return attended + mlp_(middle_norm_(attended));
  }

 private:
  RmsNorm input_norm_;
  Attention attention_;
  RmsNorm middle_norm_;
  Mlp mlp_;
};
TORCH_MODULE(LlamaLayer);

at::Tensor computed_again(const std::shared_ptr<LlamaLayerImpl>& layer, const at::Tensor& x, const Rotary& rotary) {
  return zero::checkpoint([layer, rotary](const at::Tensor& given) { return layer->forward(given, rotary); }, x);
}

void initialize(const nn::Module& module, double range) {
  torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters())
    if (parameter.dim() > 1) parameter.normal_(0, range);
}

}  // namespace

class LlamaBodyImpl : public nn::Module {
 public:
  explicit LlamaBodyImpl(const LlamaConfig& config)
      : config_(config),
        embed_(register_module("embed_tokens", nn::Embedding(config.vocab_size, config.hidden_size))),
        layers_(register_module("layers", nn::ModuleList())),
        norm_(register_module("norm", RmsNorm(config.hidden_size, config.rms_norm_eps))) {
    for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) layers_->push_back(LlamaLayer(config));
  }

  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embed_(ids);
    const Rotary rotary(config_, ids.size(-1), x);
    const bool again = config_.activations.recompute == Recompute::layers;
    for (std::size_t i = 0; i < layers_->size(); ++i) {
      const auto layer = layers_->ptr<LlamaLayerImpl>(i);
      x = again ? computed_again(layer, x, rotary) : layer->forward(x, rotary);
    }
    return norm_(x);
  }

  const at::Tensor& table() const { return embed_->weight; }

 private:
  LlamaConfig config_;
  nn::Embedding embed_;
  nn::ModuleList layers_;
  RmsNorm norm_;
};

LlamaImpl::LlamaImpl(const LlamaConfig& config) : config_(config) {
  validate(config, "the Llama model");
  model_ = register_module("model", std::make_shared<LlamaBodyImpl>(config));
  if (!config.tie_word_embeddings)
    lm_head_ = register_module("lm_head", projection(config.hidden_size, config.vocab_size));
  initialize(*this, config.initializer_range);
}

at::Tensor LlamaImpl::hidden(const at::Tensor& ids) {
  if (ids.size(-1) > config_.max_position_embeddings)
    throw zero::ConfigError("a sequence of " + std::to_string(ids.size(-1)) + " tokens exceeds the model's " +
                                std::to_string(config_.max_position_embeddings) + " positions",
                            "shorten the sequence or raise max_position_embeddings");
  return model_->forward(ids);
}

const at::Tensor& LlamaImpl::head() const {
  return lm_head_ ? lm_head_->weight : model_->table();
}

at::Tensor LlamaImpl::forward(const at::Tensor& ids) {
  return nn::functional::linear(hidden(ids), head());
}

at::Tensor LlamaImpl::loss(const at::Tensor& ids, const at::Tensor& targets) {
  return zero::cross_entropy(hidden(ids), head(), targets, {.pieces = config_.activations.loss_pieces});
}

zero::TensorRule llama_cuts() {
  using zero::TensorCut;
  return zero::tensor_named({{"*.q_proj", TensorCut::column},
                             {"*.k_proj", TensorCut::column},
                             {"*.v_proj", TensorCut::column},
                             {"*.o_proj", TensorCut::row},
                             {"*.gate_proj", TensorCut::column},
                             {"*.up_proj", TensorCut::column},
                             {"*.down_proj", TensorCut::row},
                             {"*.embed_tokens", TensorCut::column},
                             {"*.lm_head", TensorCut::column}});
}

}  // namespace models
