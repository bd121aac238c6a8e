#include "planner/processor.h"

#include <cstdlib>

namespace planner {

Processor Processor::here() {
  const char* const limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  Processor processor{.limit = limit == nullptr ? "" : limit};
#if defined(__x86_64__)
  processor.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  processor.avx512_bf16 = __builtin_cpu_supports("avx512bf16");
#endif
  return processor;
}

ProductScratch product_scratch(const Processor& processor) {
  const std::string_view limit = processor.limit;
  if (!processor.avx512 || limit.starts_with("SSE") || limit.starts_with("AVX2") || limit == "AVX")
    return ProductScratch::none;
  const bool wide = !processor.avx512_bf16 || limit == "AVX512_CORE" || limit == "AVX512_CORE_VNNI";
  return wide ? ProductScratch::wide_results : ProductScratch::blocks;
}

}  // namespace planner
