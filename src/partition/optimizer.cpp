#include "zero/optimizer.h"

namespace zero {

namespace {

int moments_of(const AdamW&) {
  return 2;
}
int moments_of(const Sgd& sgd) {
  return sgd.momentum != 0 ? 1 : 0;
}

}  // namespace

int moments(const Optimizer& optimizer) {
  return std::visit([](const auto& value) { return moments_of(value); }, optimizer);
}

double learning_rate(const Optimizer& optimizer) {
  return std::visit([](const auto& value) { return value.lr; }, optimizer);
}

ParamGroup no_decay_on_norms_biases_embeddings() {
  const auto takes = [](const ParameterInfo& info) { return info.shape.size() <= 1 || info.embedding; };
  return {.takes = takes, .weight_decay = 0.0};
}

}  // namespace zero
