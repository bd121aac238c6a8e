// FP8 conversions of arrays, vectorised; see base/float8.h. No torch.
#pragma once

#include <cstdint>

#include "base/float8.h"
#include "base/half.h"

namespace zero {

// The largest magnitude; NaN where there is one. 0 of nothing.
float largest_magnitude(const float* values, std::int64_t count);
float largest_magnitude(const Bf16* values, std::int64_t count);

// out[i] = values[i] * scale, rounded to the nearest.
void narrow(const float* values, float scale, E4m3* out, std::int64_t count);
void narrow(const Bf16* values, float scale, E4m3* out, std::int64_t count);
void narrow(const float* values, float scale, E5m2* out, std::int64_t count);
void narrow(const Bf16* values, float scale, E5m2* out, std::int64_t count);

// Exact.
void widen(const E4m3* values, Bf16* out, std::int64_t count);
void widen(const E5m2* values, Bf16* out, std::int64_t count);

}  // namespace zero
