// Gradients in the order in which units have them.
#pragma once

#include <ATen/Functions.h>

namespace zero {

// The gradient's elements in the memory order of its parameter.
inline at::Tensor in_order_of(const at::Tensor& parameter, const at::Tensor& gradient) {
  const bool same = !gradient.is_sparse() && gradient.strides() == parameter.strides() &&
                    gradient.scalar_type() == parameter.scalar_type();
  if (same) return gradient;
  at::Tensor ordered = at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options());
  return ordered.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
}

}  // namespace zero
