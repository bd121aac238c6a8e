// Of how many elements the ranks' slices are multiples. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/codec.h"
#include "partition/moments.h"
#include "zero/optimizer.h"
#include "zero/plan.h"

namespace zero {

// The third argument of Layout: blocks, of values on the wire and of moments, are not cut.
inline std::int64_t slices_of(const Plan& plan, const std::vector<ParameterRule>& rules) {
  return std::max(block_of(plan[State::parameter].wire), slice_multiple(rules));
}

}  // namespace zero
