// Stretches of flat memory that gradients pass through.
#pragma once

#include <ATen/Functions.h>

#include <cstdint>
#include <cstring>

#include "base/elements.h"
#include "comm/torch/dtypes.h"

namespace zero {

// The gradient's elements in the memory order of its parameter.
inline at::Tensor in_order_of(const at::Tensor& parameter, const at::Tensor& gradient) {
  const bool same = !gradient.is_sparse() && gradient.strides() == parameter.strides() &&
                    gradient.scalar_type() == parameter.scalar_type();
  if (same) return gradient;
  at::Tensor ordered = at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options());
  return ordered.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
}

inline void add_in_place(void* sum, const void* addend, Dtype dtype, Dtype sum_dtype, std::int64_t count) {
  const at::Tensor target = at::from_blob(sum, {count}, at::TensorOptions().dtype(scalar_type(sum_dtype)));
  target.add_(at::from_blob(const_cast<void*>(addend), {count}, at::TensorOptions().dtype(scalar_type(dtype))));
}

inline void convert(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, std::int64_t count) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, bytes_of(count, to_dtype));
    return;
  }
  at::from_blob(to, {count}, at::TensorOptions().dtype(scalar_type(to_dtype)))
      .copy_(at::from_blob(const_cast<void*>(from), {count}, at::TensorOptions().dtype(scalar_type(from_dtype))));
}

}  // namespace zero
