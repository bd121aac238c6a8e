// One unit's gradients, for Gradients alone.
#pragma once

#include <memory>
#include <vector>

#include "gradients/accumulation_hook.h"
#include "gradients/gradients.h"
#include "gradients/held_gradient.h"

namespace zero {

struct Gradients::UnitGradients {
  UnitGradients(Unit& u, Home& where, const Slice& elements, Dtype dtype)
      : unit(u),
        home(where),
        planned(dtype),
        held(where.computing, elements, dtype),
        extra(where.computing, elements, dtype),
        here(u.layout().slots().size()),
        ever(u.layout().slots().size()),
        placeholders(u.layout().slots().size()),
        shown(u.layout().slots().size()) {}

  Unit& unit;
  Home& home;
  Dtype planned;                         // of what is held
  HeldGradient held;                     // accumulated
  HeldGradient extra;                    // of a micro-batch beyond the planned ones, partial, as wide as planned
  std::shared_ptr<Buffer> flat;          // of this micro-batch, on its way to the shards
  Buffer slice;                          // of it, reduced, about to be accumulated
  std::vector<char> here;                // arrived in this backward
  std::vector<char> ever;                // arrived in this step
  std::vector<at::Tensor> placeholders;  // of gradients that are here; made when they are first shown
  std::vector<char> shown;               // by the parameter, as its grad()
  std::vector<std::unique_ptr<AccumulationHook>> hooks;  // by slot
  bool used = false;                                     // trainable at one of this step's micro-batches
  int expected = 0;
  int arrived = 0;
  bool complete = false;
};

}  // namespace zero
