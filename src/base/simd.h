// One source, several instruction sets: a function marked ZERO_MULTIVERSION is compiled for each and
// the best is picked when the program starts. Contraction to fused multiply-add is off in the whole
// project, so all versions give the same bits.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define ZERO_MULTIVERSION __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ZERO_MULTIVERSION
#endif
