// Elements of flat memory, whose type is known at run time.
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

}  // namespace zero
