// Element types, independent of LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zero {

enum class Dtype : std::uint8_t { f32, f64, bf16, f16, i64, i32, u8 };

// Bytes of one element.
constexpr std::int64_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
    case Dtype::i64: return 8;
    case Dtype::f32:
    case Dtype::i32: return 4;
    case Dtype::bf16:
    case Dtype::f16: return 2;
    case Dtype::u8: return 1;
  }
  return 0;
}

// "fp32", ...
constexpr std::string_view name(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return "fp32";
    case Dtype::f64: return "fp64";
    case Dtype::bf16: return "bf16";
    case Dtype::f16: return "fp16";
    case Dtype::i64: return "int64";
    case Dtype::i32: return "int32";
    case Dtype::u8: return "uint8";
  }
  return "?";
}

// The type in which values of `dtype` are added up and in which the optimizer keeps its weights:
// fp64 for fp64, fp32 for the other floating-point types, the type itself for integers.
constexpr Dtype accumulation(Dtype dtype) {
  return dtype == Dtype::bf16 || dtype == Dtype::f16 ? Dtype::f32 : dtype;
}

}  // namespace zero
