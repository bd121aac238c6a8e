// One unit's gradients, for Gradients alone.
#pragma once

#include <memory>
#include <vector>

#include "state/gradients.h"

namespace zero {

struct Gradients::Pile {
  Pile(Unit& u, Dtype k)
      : unit(u), planned(k), kept(k), here(u.layout().slots().size()), ever(u.layout().slots().size()) {}

  Unit& unit;
  Dtype planned;                 // of levels
  Dtype kept;                    // of levels in this step
  std::vector<Buffer> levels;    // accumulated
  Buffer extra;                  // of a micro-batch beyond the planned ones, partial, as wide as planned
  std::shared_ptr<Buffer> flat;  // of this micro-batch, on its way to the shards
  Buffer slice;                  // of it, reduced, about to be accumulated
  std::vector<char> here;        // arrived in this backward
  std::vector<char> ever;        // arrived in this step
  bool used = false;             // trainable at one of this step's micro-batches
  int expected = 0;
  int arrived = 0;
  bool complete = false;
};

}  // namespace zero
