// A model of which building is worth deferring, whole or deferred.
#pragma once

#include <torch/torch.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "deferred/deferred_tensors.h"
#include "harness.h"
#include "lm.h"
#include "zero/deferred.h"

namespace zero::test {

namespace nn = torch::nn;

inline bool waits(const at::Tensor& tensor) {
  return deferred_tensors::deferred(tensor);
}

// Parameters and buffers.
inline std::map<std::string, at::Tensor> values_of(const nn::Module& module) {
  std::map<std::string, at::Tensor> values;
  for (const auto& item : module.named_parameters()) values[item.key()] = item.value().detach();
  for (const auto& item : module.named_buffers()) values[item.key()] = item.value();
  return values;
}

// Sizes that are worth it, a frozen layer, a table that is computed, another in a member that is not registered, a head
// tied to the embedding.
struct Larger : nn::Module {
  Larger()
      : embed(register_module("embed", nn::Embedding(nn::EmbeddingOptions(61, 40).padding_idx(2)))),
        layers(register_module("layers", nn::Sequential())),
        scale(register_buffer("scale", torch::ones({61, 40}).mul_(0.5))),
        constant(torch::rand({61, 40})),
        bias(register_parameter("bias", torch::zeros({61}))) {
    for (int i = 0; i < 3; ++i) layers->push_back(nn::Linear(40, 40));
    layers->push_back(nn::LayerNorm(nn::LayerNormOptions({40})));
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters())
      if (parameter.dim() > 1) parameter.normal_(0, 0.3);
    for (at::Tensor& parameter : layers[1]->parameters()) parameter.set_requires_grad(false);
  }

  at::Tensor loss(std::int64_t index) {
    const at::Tensor ids = tokens(index, {3, 7}, 61).to(bias.device());
    const at::Tensor factors = scale * constant.to(bias.device(), scale.scalar_type());
    const at::Tensor x = layers->forward(nn::functional::embedding(ids.slice(1, 0, 6), embed->weight * factors));
    return nn::functional::cross_entropy(nn::functional::linear(x, embed->weight, bias).flatten(0, 1),
                                         ids.slice(1, 1).flatten());
  }

  nn::Embedding embed;
  nn::Sequential layers;
  at::Tensor scale, constant, bias;
};

inline std::mutex drawing;  // ranks that are threads have one generator

// The model by rank: deferred everywhere or nowhere.
inline Course<Larger> larger(bool deferred, at::ScalarType dtype = at::kFloat) {
  return {.make = [=] {
    const std::lock_guard lock(drawing);
    torch::manual_seed(3);
    const auto make = [] { return std::make_shared<Larger>(); };
    auto model = deferred ? zero::deferred(make) : make();
    model->to(device_of_rank(), dtype);
    return model;
  }};
}

}  // namespace zero::test
