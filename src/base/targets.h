// What a function is compiled for: the host and a device, or several instruction sets of the host. No torch.
#pragma once

// A function that host and device compute alike.
#ifdef __CUDACC__
#define ZERO_BOTH __host__ __device__
#else
#define ZERO_BOTH
#endif

// A function, or function template, that is compiled for AVX-512, AVX2 and the least processor; the best is picked when
// the program starts. Contraction to fused multiply-add is off in the whole project, so all versions give the same
// bits. Sanitized programs run the last version: the sanitizers are not ready yet when the picking is done.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define ZERO_MULTIVERSION __attribute__((flatten, target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ZERO_MULTIVERSION
#endif
