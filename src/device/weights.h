// Main weights, or what rounding cut off them, beside parameters that a program has written. No torch.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "zero/dtype.h"

namespace zero {

// What rounding to bf16 cuts off the values.
void keep_rest(const float* values, Bf16* rest, std::int64_t count);
// Forgets what does not belong to a value that was written.
void drop_misfits(const Bf16* written, Bf16* rest, std::int64_t count);
// Main weights become what was written, of type `stored`, bf16 or f16, unless they are rounded to just that.
void adopt_written(const void* written, Dtype stored, float* main, std::int64_t count);

}  // namespace zero
