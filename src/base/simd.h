// One source, several instruction sets: a function (or function template) marked ZERO_MULTIVERSION is
// compiled for AVX-512, AVX2 and the least processor, and the best is picked when the program starts.
// Contraction to fused multiply-add is off in the whole project, so all versions give the same bits.
// Sanitized programs run the last version: the sanitizers are not ready yet when the picking is done.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define ZERO_MULTIVERSION __attribute__((flatten, target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ZERO_MULTIVERSION
#endif
