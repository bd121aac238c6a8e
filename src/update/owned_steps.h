// What the owner of a whole tensor computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "zero/optimizer.h"

namespace zero {

// The nearest orthogonal matrix, roughly: Newton-Schulz in bf16 with Jordan's coefficients. bf16, of the input's shape.
at::Tensor orthogonalised(const at::Tensor& input, int iterations);

// Adafactor's step of a tensor of two dimensions or more, of the gradient `g`, before its size is set. Updates the
// means of squares over columns (`rows`: [..., rows, 1]) and over rows (`columns`: [..., 1, columns]).
at::Tensor factored_step(const Adafactor& optimizer, const at::Tensor& g, const at::Tensor& rows,
                         const at::Tensor& columns, std::int64_t step);

}  // namespace zero
