// Values that are read, and converted on the way where a tensor is not of their type.
#pragma once

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>

namespace zero {

inline constexpr std::int64_t kReadAtOnce = std::int64_t{4} << 20;  // elements

// read(begin, end, memory) reads elements [begin, end), of type `from`: those of `to`, of one dimension.
void read_stretches(const at::Tensor& to, at::ScalarType from, const auto& read) {
  if (to.is_cpu() && to.scalar_type() == from) return read(std::int64_t{0}, to.numel(), to.mutable_data_ptr());
  const at::Tensor values = at::empty({std::min(kReadAtOnce, to.numel())}, from);
  for (std::int64_t at = 0; at < to.numel(); at += kReadAtOnce) {
    const std::int64_t count = std::min(kReadAtOnce, to.numel() - at);
    read(at, at + count, values.mutable_data_ptr());
    to.narrow(0, at, count).copy_(values.narrow(0, 0, count));
  }
}

}  // namespace zero
