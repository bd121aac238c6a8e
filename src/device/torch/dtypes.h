// LibTorch's element types and ours.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "zero/communicator.h"

namespace zero {

inline std::optional<Dtype> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return Dtype::f32;
    case at::kDouble: return Dtype::f64;
    case at::kBFloat16: return Dtype::bf16;
    case at::kHalf: return Dtype::f16;
    default: return std::nullopt;
  }
}

// Of integers, too.
inline std::optional<Dtype> any_dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kLong: return Dtype::i64;
    case at::kInt: return Dtype::i32;
    case at::kByte: return Dtype::u8;
    default: return dtype_of(type);
  }
}

inline at::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return at::kFloat;
    case Dtype::f64: return at::kDouble;
    case Dtype::bf16: return at::kBFloat16;
    case Dtype::f16: return at::kHalf;
    case Dtype::i64: return at::kLong;
    case Dtype::i32: return at::kInt;
    case Dtype::u8: return at::kByte;
  }
  return at::kFloat;
}

inline int device_index(const at::Device& device) {
  return device.is_cpu() ? -1 : device.index();
}

// `count` elements from element `begin` of the flat tensor memory at `data`.
inline View view_of(void* data, Dtype dtype, std::int64_t begin, std::int64_t count, const at::Device& device) {
  return {static_cast<char*>(data) + begin * size_of(dtype), count, dtype, device_index(device)};
}

}  // namespace zero
