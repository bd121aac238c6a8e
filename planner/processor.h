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

// What a product of matrices of bf16 has beside it for a moment.
enum class ProductScratch {
  none,
  blocks,        // operands in another order: where there are instructions for bf16
  wide_results,  // those, and all of the result in fp32: where there is AVX-512 without
};
ProductScratch product_scratch(const Processor& processor = Processor::here());

}  // namespace planner
