// For tests on the simulated accelerator.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "device/accelerator.h"

namespace zero::test::accelerator {

class OnTheDevice : public ::testing::Test {
 protected:
  void SetUp() override { reset(); }
  void TearDown() override { EXPECT_NO_THROW(reset()); }
};

inline float* in_kernel(const at::Tensor& tensor) {
  return static_cast<float*>(shadow(tensor.mutable_data_ptr()));
}

inline Access reads(const at::Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.nbytes()};
}

inline Access writes(const at::Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.nbytes(), true};
}

// Kernels on contiguous fp32.
inline void fill(const at::Tensor& target, float value, c10::Stream stream) {
  launch(stream, {writes(target)}, [to = in_kernel(target), n = target.numel(), value] { std::fill_n(to, n, value); });
}

inline void twice(const at::Tensor& source, const at::Tensor& target, c10::Stream stream) {
  launch(stream, {reads(source), writes(target)},
         [from = in_kernel(source), to = in_kernel(target), n = source.numel()] {
           std::transform(from, from + n, to, [](float value) { return 2 * value; });
         });
}

// What it says, or nothing.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace zero::test::accelerator
