// Which parameters to cut, by what the operators of a micro-batch would then do: they are played through with parts of
// the meta device, over ranks that there are not, by the rules by which they run (sharded_call.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zero/tensor_rule.h"

namespace zero {

class OperatorFlow;

struct CutCandidate {
  std::string kind;     // those of one kind are cut alike
  at::Tensor stand_in;  // in the flow
  at::Tensor gradient;  // likewise; undefined: it has none
};

// How each is cut; none: every rank has it.
using AxisCuts = std::vector<std::optional<TensorCut>>;

// Those for which a rank has least to do: see tensor_automatic(). 16-bit and wider floating-point numbers are cut,
// along the first dimension or the second, in one block or in as many as the program divides so long a dimension into.
AxisCuts automatic_cuts(const OperatorFlow& flow, const std::vector<CutCandidate>& candidates, int ranks);

}  // namespace zero
