// Optimizers of the engine's that LibTorch has, too: its classes, and what their options say.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tuple>

#include "zero/optimizer.h"

namespace zero {

// Has none.
template <class Ours>
struct TorchClass {};

template <class Ours>
concept HasTorchClass = requires {
  typename TorchClass<Ours>::Options;
};

// each_option(ours, theirs, use) calls use(mine, its) with every value but the learning rate, ours and LibTorch's; of
// each, one may be constant.
template <>
struct TorchClass<Sgd> {
  using Class = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  static void each_option(auto& ours, auto& theirs, const auto& use) {
    use(ours.momentum, theirs.momentum());
    use(ours.dampening, theirs.dampening());
    use(ours.weight_decay, theirs.weight_decay());
    use(ours.nesterov, theirs.nesterov());
  }
};
template <>
struct TorchClass<AdaGrad> {
  using Class = torch::optim::Adagrad;
  using Options = torch::optim::AdagradOptions;
  static void each_option(auto& ours, auto& theirs, const auto& use) {
    use(ours.lr_decay, theirs.lr_decay());
    use(ours.weight_decay, theirs.weight_decay());
    use(ours.initial_accumulator_value, theirs.initial_accumulator_value());
    use(ours.eps, theirs.eps());
  }
};
template <>
struct TorchClass<RmsProp> {
  using Class = torch::optim::RMSprop;
  using Options = torch::optim::RMSpropOptions;
  static void each_option(auto& ours, auto& theirs, const auto& use) {
    use(ours.alpha, theirs.alpha());
    use(ours.eps, theirs.eps());
    use(ours.weight_decay, theirs.weight_decay());
    use(ours.momentum, theirs.momentum());
    use(ours.centered, theirs.centered());
  }
};
struct TorchAdams {
  static void each_option(auto& ours, auto& theirs, const auto& use) {
    use(ours.beta1, std::get<0>(theirs.betas()));
    use(ours.beta2, std::get<1>(theirs.betas()));
    use(ours.eps, theirs.eps());
    use(ours.weight_decay, theirs.weight_decay());
    use(ours.amsgrad, theirs.amsgrad());
  }
};
template <>
struct TorchClass<Adam> : TorchAdams {
  using Class = torch::optim::Adam;
  using Options = torch::optim::AdamOptions;
};
template <>
struct TorchClass<AdamW> : TorchAdams {
  using Class = torch::optim::AdamW;
  using Options = torch::optim::AdamWOptions;
};

}  // namespace zero
