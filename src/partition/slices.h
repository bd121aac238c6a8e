// Of how many elements the ranks' slices are multiples. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/float8_blocks.h"
#include "partition/moments.h"
#include "zero/optimizer.h"
#include "zero/plan.h"

namespace zero {

// The third argument of Layout: blocks, of values on the wire and of moments, are not cut.
inline std::int64_t slices_of(const Plan& plan, const std::vector<ParameterRule>& rules) {
  const std::int64_t sent = plan[State::parameter].wire == Wire::native ? 1 : kWireBlock;
  return std::max(sent, slice_multiple(rules));
}

}  // namespace zero
