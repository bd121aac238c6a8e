// What the planner asks of the processor that it runs on. No torch.
#pragma once

#include <string_view>

namespace planner {

// What oneDNN, by which LibTorch multiplies matrices of bf16 on a CPU, goes by.
struct Processor {
  bool avx512 = false, avx512_bf16 = false;
  std::string_view limit = {};  // ONEDNN_MAX_CPU_ISA; empty: none

  static Processor here();
};

// Whether a product of matrices of bf16 has all of its result in fp32 beside it for a moment: where there is AVX-512
// without instructions for bf16.
bool keeps_wide_results(const Processor& processor = Processor::here());

}  // namespace planner
