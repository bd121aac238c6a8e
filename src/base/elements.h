// Elements of flat memory, whose type is known at run time: their addresses, sizes and conversions. No torch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "zero/dtype.h"

namespace zero {

inline char* at_element(void* data, std::int64_t element, Dtype dtype) {
  return static_cast<char*>(data) + element * size_of(dtype);
}
inline const char* at_element(const void* data, std::int64_t element, Dtype dtype) {
  return static_cast<const char*>(data) + element * size_of(dtype);
}

inline std::size_t bytes_of(std::int64_t count, Dtype dtype) {
  return static_cast<std::size_t>(count * size_of(dtype));
}

bool is_floating(Dtype dtype);

// `count` elements, of fp32, fp64, bf16 or fp16 both, rounded to nearest even; to 16 bits by way of fp32. `from` and
// `to` need no alignment and do not overlap.
void convert_elements(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, std::int64_t count);

// The least multiple of it, of a page's size for example, that is not below `value`, which is not negative.
template <class T>
constexpr T round_up(T value, T multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace zero
