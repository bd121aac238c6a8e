#include "operators/float8_product.h"

#include <ATen/Functions.h>

#include <utility>

#include "device/torch/dtypes.h"
#include "zero/activations.h"

namespace zero {
namespace {

// The unit takes matrices of such sizes.
constexpr std::int64_t kTile = 16;

bool in_tiles(const at::Tensor& matrix) {
  return matrix.numel() > 0 && matrix.size(0) % kTile == 0 && matrix.size(1) % kTile == 0;
}

// The first by rows, the second by columns, as the unit takes them.
at::Tensor by_the_device(const Float8Operand& a, const Float8Operand& b, const std::optional<at::Tensor>& bias) {
  return at::_scaled_mm(a.codes().contiguous(), b.codes().t().contiguous().t(), a.inverse(), b.inverse(),
                        bias ? std::optional(bias->to(at::kBFloat16)) : std::nullopt, /*scale_result=*/{},
                        at::kBFloat16);
}

// Scales are powers of two: what they multiply is rounded no more.
at::Tensor in_bf16(const Float8Operand& a, const Float8Operand& b, const std::optional<at::Tensor>& bias) {
  const at::Tensor scaled =
      bias ? at::addmm(bias->to(at::kBFloat16).mul(a.factor().mul(b.factor())), a.values(), b.values())
           : at::mm(a.values(), b.values());
  return scaled.mul(a.inverse().mul(b.inverse()));
}

}  // namespace

Float8Matrix::Float8Matrix(Device& device, Float8Format format, const at::Tensor& matrix, float given, float* noted)
    : device_(device),
      format_(format),
      codes_(at::empty_strided(matrix.sizes(), matrix.strides(), matrix.options().dtype(at::kByte))),
      scale_(at::empty({sizeof(Float8Scale) / sizeof(float)}, matrix.options().dtype(at::kFloat))) {
  auto* const scale = static_cast<Float8Scale*>(scale_.mutable_data_ptr());
  const Dtype dtype = *dtype_of(matrix.scalar_type());
  keep(matrix);  // it is read past operators
  device.zero(&scale->largest, sizeof(float));
  device.run(FindLargest{matrix.const_data_ptr(), dtype, matrix.numel(), &scale->largest, noted});
  device.run(ToFloat8{format, matrix.const_data_ptr(), dtype, matrix.numel(), given, scale,
                      static_cast<std::uint8_t*>(codes_.mutable_data_ptr())});
}

Float8Matrix::Float8Matrix(Device& device, Float8Format format, at::Tensor codes, at::Tensor scale)
    : device_(device), format_(format), codes_(std::move(codes)), scale_(std::move(scale)) {}

const at::Tensor& Float8Matrix::values() const {
  if (values_.defined()) return values_;
  values_ = at::empty_strided(codes_.sizes(), codes_.strides(), codes_.options().dtype(at::kBFloat16));
  device_.run(FromFloat8{format_, static_cast<const std::uint8_t*>(codes_.const_data_ptr()), values_.mutable_data_ptr(),
                         codes_.numel()});
  return values_;
}

at::Tensor Float8Operand::codes() const {
  const at::Tensor typed =
      matrix.codes_.view(matrix.format_ == Float8Format::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2);
  return transposed ? typed.t() : typed;
}

at::Tensor Float8Operand::values() const {
  return transposed ? matrix.values().t() : matrix.values();
}

at::Tensor multiply(const Float8Operand& a, const Float8Operand& b, const std::optional<at::Tensor>& bias) {
  const bool there = a.device().multiplies_float8() && in_tiles(a.matrix.codes()) && in_tiles(b.matrix.codes());
  return there ? by_the_device(a, b, bias) : in_bf16(a, b, bias);
}

}  // namespace zero
