// How a tensor is scaled for FP8: by one power of two. No torch.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/both.h"
#include "base/float8.h"

namespace zero {

enum class Float8Format : std::uint8_t { e4m3, e5m2 };

// Beside the codes of a tensor, three numbers where they are.
struct Float8Scale {
  float inverse;  // of `scale`; the first, since CUDA's products read it from a multiple of 16 bytes only
  float largest;  // magnitude; NaN where there is one
  float scale;    // by which the values were multiplied; NaN where `largest` is not finite
};

namespace float8 {

constexpr double largest_of(Float8Format format) {
  return format == Float8Format::e4m3 ? double{E4m3::kLargest} : double{E5m2::kLargest};
}

// A power of two that brings `largest` below the format's.
ZERO_BOTH inline float scale_into(double format, double largest) {
  if (!std::isfinite(largest)) return std::bit_cast<float>(0x7fc00000);
  if (largest == 0) return 1;
  return power(std::clamp(std::ilogb(format / largest), -40, 40));
}

// `given`: what finite values are scaled by; 0: by their own largest magnitude.
ZERO_BOTH inline float scale_of(double format, float largest, float given) {
  return given != 0 && std::isfinite(largest) ? given : scale_into(format, largest);
}

}  // namespace float8
}  // namespace zero
