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

bool keeps_wide_results(const Processor& processor) {
  const std::string_view limit = processor.limit;
  if (!processor.avx512 || limit.starts_with("SSE") || limit.starts_with("AVX2") || limit == "AVX") return false;
  return !processor.avx512_bf16 || limit == "AVX512_CORE" || limit == "AVX512_CORE_VNNI";
}

}  // namespace planner
