// FP8 conversions of arrays, vectorised; see base/float8.h. No torch.
#pragma once

#include <cstdint>

#include "base/float8.h"
#include "base/float8_scale.h"
#include "base/half.h"
#include "zero/dtype.h"

namespace zero {

// Of values in fp32 or bf16: `largest` and, unless it is null, `noted` grow to their largest magnitude, NaN above all.
void find_largest(const void* values, Dtype dtype, std::int64_t count, float* largest, float* noted);

// Writes the scale that follows from scale->largest and `given`, see float8::scale_of, and the values by it, rounded to
// the nearest.
void to_float8(Float8Format format, const void* values, Dtype dtype, std::int64_t count, float given,
               Float8Scale* scale, std::uint8_t* codes);

// Exact, without the scale.
void from_float8(Float8Format format, const std::uint8_t* codes, Bf16* values, std::int64_t count);

}  // namespace zero
