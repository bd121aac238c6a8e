// The Llama-style language model of model.py in plain LibTorch. Modules are made in the same order, so
// that one seed gives both the same weights.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>

namespace peers {

inline constexpr double kEps = 1e-5;
inline constexpr double kTheta = 10000;

struct Shape {
  std::int64_t layers = 8;
  std::int64_t dim = 512;
  std::int64_t heads = 8;
  std::int64_t ffn = 1408;
  std::int64_t vocab = 4096;
  std::int64_t seq = 128;
};

// Cosines and sines of [seq, half a head]: by how much a pair of features turns at a position.
struct Rotary {
  torch::Tensor cos;
  torch::Tensor sin;

  explicit Rotary(const Shape& shape) {
    const std::int64_t head = shape.dim / shape.heads;
    const torch::Tensor exponents = -torch::arange(0, head, 2).to(torch::kFloat) / head;
    const torch::Tensor angles =
        torch::outer(torch::arange(shape.seq).to(torch::kFloat), torch::pow(kTheta, exponents));
    cos = angles.cos();
    sin = angles.sin();
  }

  Rotary(torch::Tensor cosines, torch::Tensor sines) : cos(std::move(cosines)), sin(std::move(sines)) {}

  Rotary to(torch::ScalarType dtype) const { return {cos.to(dtype), sin.to(dtype)}; }

  torch::Tensor turn(const torch::Tensor& x) const {
    const auto halves = x.chunk(2, -1);
    const torch::Tensor &a = halves[0], &b = halves[1];
    return torch::cat({a * cos - b * sin, b * cos + a * sin}, -1);
  }
};

inline torch::nn::Linear projection(std::int64_t inputs, std::int64_t outputs) {
  return torch::nn::Linear(torch::nn::LinearOptions(inputs, outputs).bias(false));
}

struct NormImpl : torch::nn::Module {
  explicit NormImpl(std::int64_t dim) : weight(register_parameter("weight", torch::ones(dim))) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::rms_norm(x, weight.sizes(), weight, kEps); }

  torch::Tensor weight;
};
TORCH_MODULE(Norm);

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const Shape& shape) : heads(shape.heads) {
    query = register_module("query", projection(shape.dim, shape.dim));
    key = register_module("key", projection(shape.dim, shape.dim));
    value = register_module("value", projection(shape.dim, shape.dim));
    output = register_module("output", projection(shape.dim, shape.dim));
  }

  torch::Tensor split(const torch::Tensor& x) const { return x.unflatten(-1, {heads, -1}).transpose(1, 2); }

  torch::Tensor forward(const torch::Tensor& x, const Rotary& rotary) {
    const torch::Tensor q = rotary.turn(split(query(x)));
    const torch::Tensor k = rotary.turn(split(key(x)));
    const torch::Tensor y = torch::scaled_dot_product_attention(q, k, split(value(x)), {}, 0.0, true);
    return output(y.transpose(1, 2).flatten(2));
  }

  std::int64_t heads;
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr}, output{nullptr};
};
TORCH_MODULE(Attention);

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(const Shape& shape) {
    gate = register_module("gate", projection(shape.dim, shape.ffn));
    up = register_module("up", projection(shape.dim, shape.ffn));
    down = register_module("down", projection(shape.ffn, shape.dim));
  }

  torch::Tensor forward(const torch::Tensor& x) { return down(torch::silu(gate(x)) * up(x)); }

  torch::nn::Linear gate{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Mlp);

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(const Shape& shape) {
    attention_norm = register_module("attention_norm", Norm(shape.dim));
    attention = register_module("attention", Attention(shape));
    mlp_norm = register_module("mlp_norm", Norm(shape.dim));
    mlp = register_module("mlp", Mlp(shape));
  }

  torch::Tensor forward(const torch::Tensor& x, const Rotary& rotary) {
    const torch::Tensor attended = x + attention(attention_norm(x), rotary);
    return attended + mlp(mlp_norm(attended));
  }

  Norm attention_norm{nullptr}, mlp_norm{nullptr};
  Attention attention{nullptr};
  Mlp mlp{nullptr};
};
TORCH_MODULE(Layer);

struct LanguageModelImpl : torch::nn::Module {
  explicit LanguageModelImpl(const Shape& shape) : rotary(shape) {
    table = register_module("table", torch::nn::Embedding(shape.vocab, shape.dim));
    layers = register_module("layers", torch::nn::ModuleList());
    for (std::int64_t i = 0; i < shape.layers; ++i) layers->push_back(Layer(shape));
    norm = register_module("norm", Norm(shape.dim));
    head = register_module("head", projection(shape.dim, shape.vocab));
  }

  // From tokens and those that follow each, [batch, seq] of int64, to the mean cross entropy in fp32.
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& targets) {
    torch::Tensor x = table(tokens);
    const Rotary turns = rotary.to(x.scalar_type());
    for (const auto& layer : *layers) x = layer->as<Layer>()->forward(x, turns);
    const torch::Tensor logits = head(norm(x)).flatten(0, 1);
    return torch::nn::functional::cross_entropy(logits.to(torch::kFloat), targets.flatten());
  }

  Rotary rotary;
  torch::nn::Embedding table{nullptr};
  torch::nn::ModuleList layers{nullptr};
  Norm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(LanguageModel);

}  // namespace peers
