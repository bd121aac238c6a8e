// Every optimizer in every form that has a code path of its own: first those that go element by element.
#pragma once

#include <vector>

#include "zero/optimizer.h"

namespace zero::test {

inline std::vector<Optimizer> every_optimizer() {
  return {Sgd{.lr = 0.1},
          Sgd{.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.1},
          Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true},
          AdaGrad{.lr = 2e-2, .lr_decay = 0.1, .weight_decay = 0.1, .initial_accumulator_value = 0.1, .eps = 1e-4},
          RmsProp{.lr = 2e-3, .eps = 1e-4, .weight_decay = 0.1},
          RmsProp{.lr = 2e-3, .eps = 1e-2, .centered = true},
          RmsProp{.lr = 2e-3, .eps = 1e-4, .momentum = 0.5},
          RmsProp{.lr = 2e-3, .eps = 1e-2, .weight_decay = 0.1, .momentum = 0.5, .centered = true},
          Adam{.lr = 2e-3, .eps = 1e-4, .weight_decay = 0.1},
          Adam{.lr = 2e-3, .eps = 1e-4, .amsgrad = true},
          AdamW{.lr = 2e-3, .eps = 1e-4, .weight_decay = 0.1},
          AdamW{.lr = 2e-3, .eps = 1e-4, .weight_decay = 0.1, .amsgrad = true},
          Lion{.lr = 1e-3, .weight_decay = 0.1}};
}

// Moments in fewer bits.
inline std::vector<Optimizer> narrow_moments() {
  return {AdamW{.lr = 2e-3, .eps = 1e-4, .weight_decay = 0.1, .format = MomentFormat::bf16},
          AdamW{.lr = 2e-3, .eps = 1e-4, .weight_decay = 0.1, .format = MomentFormat::block8},
          Adam{.lr = 2e-3, .eps = 1e-4, .amsgrad = true, .format = MomentFormat::block8}};
}

// Over whole tensors.
inline std::vector<Optimizer> whole_optimizers() {
  return {Muon{.weight_decay = 0.1, .rest = AdamW{.lr = 2e-3, .eps = 1e-4}},
          Muon{.nesterov = false, .iterations = 3, .as_large_as_adamw = true, .rest = AdamW{.lr = 2e-3, .eps = 1e-4}},
          Adafactor{.weight_decay = 0.1}, Lamb{.lr = 2e-2, .eps = 1e-4}};
}

// What LibTorch does not have.
inline std::vector<Optimizer> our_own_options() {
  return {RmsProp{.lr = 2e-3, .eps = 1e-4, .eps_inside_root = true},
          AdamW{.lr = 2e-3, .eps = 1e-4, .weight_decay = 1e-3, .decay_by_lr = false}};
}

}  // namespace zero::test
