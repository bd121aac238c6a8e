// Linear layers in FP8 (Micikevicius et al., 2022): inputs and weights in E4M3, gradients of outputs in E5M2, sums in
// fp32. Of plans with Precision::fp8.
#pragma once

#include <cstdint>
#include <functional>

#include "zero/optimizer.h"

namespace zero {

// Where the largest magnitude, by which a tensor is scaled into the format, comes from. Scales are powers of two.
enum class Scaling : std::uint8_t {
  current,  // from the tensor itself
  delayed,  // of inputs and gradients from the last `history` steps' largest on
            // any rank: no pass before the cast
};

struct Float8 {
  Scaling scaling = Scaling::current;
  int history = 16;
  // The weights whose products are computed in FP8.
  std::function<bool(const ParameterInfo&)> takes = hidden_matrix;
};

}  // namespace zero
