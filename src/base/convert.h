// Floating-point elements in another dtype, torch-free and in any memory.
#pragma once

#include <cstdint>

#include "zero/dtype.h"

namespace zero {

bool is_floating(Dtype dtype);

// `count` elements, of fp32, fp64, bf16 or fp16 both, rounded to nearest even; to 16 bits by way of fp32. `from` and
// `to` need no alignment and do not overlap.
void convert_elements(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, std::int64_t count);

}  // namespace zero
