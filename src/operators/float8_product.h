// Matrices in FP8 and their products, where they are: by the device's own unit where it has one, else of their values
// in bf16, which holds both formats exactly. Sums are in fp32. The host waits for nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/float8.h"
#include "device/device.h"

namespace zero {

class Float8Matrix {
 public:
  // Casts a dense matrix in fp32 or bf16, see Device::find_largest and to_float8.
  Float8Matrix(Device& device, Float8Format format, const at::Tensor& matrix, float given = 0, float* noted = nullptr);
  // What was kept of another.
  Float8Matrix(Device& device, Float8Format format, at::Tensor codes, at::Tensor scale);

  // Bytes, in the order of memory of the matrix, and its Float8Scale.
  const at::Tensor& codes() const { return codes_; }
  const at::Tensor& scale() const { return scale_; }

 private:
  friend struct Float8Operand;
  // In bf16, scaled.
  const at::Tensor& values() const;
  at::Tensor number_at(std::size_t offset) const {
    return scale_.select(0, static_cast<std::int64_t>(offset / sizeof(float)));
  }

  Device& device_;
  Float8Format format_;
  at::Tensor codes_, scale_;
  mutable at::Tensor values_;
};

// A matrix in a product, which it outlives.
struct Float8Operand {
  const Float8Matrix& matrix;
  bool transposed = false;

  at::Tensor codes() const;  // in LibTorch's type
  at::Tensor values() const;
  at::Tensor factor() const { return matrix.number_at(offsetof(Float8Scale, scale)); }     // on the values
  at::Tensor inverse() const { return matrix.number_at(offsetof(Float8Scale, inverse)); }  // of it
  Device& device() const { return matrix.device_; }
};

// a b and, where there is one, the bias, rounded to bf16 once.
at::Tensor multiply(const Float8Operand& a, const Float8Operand& b, const std::optional<at::Tensor>& bias = {});

}  // namespace zero
