#include "comm/tree_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "base/half.h"
#include "base/targets.h"
#include "zero/error.h"

namespace zero {
namespace {

// Unsigned, so that integers wrap around instead of being undefined.
template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<Bf16> {
  using type = float;
};
template <>
struct Accumulator<Fp16> {
  using type = float;
};
template <class T>
using Sum = typename Accumulator<T>::type;

using zero::widen;
std::uint32_t widen(std::uint32_t value) {
  return value;
}
std::uint64_t widen(std::uint64_t value) {
  return value;
}

constexpr std::int64_t kBlock = 512;
constexpr int kDepth = 24;  // levels of scratch: more sources than any group has

template <class T>
using Sources = std::span<const T* const>;

// Element i of each loop depends on elements i only, so an output that is one of the inputs is fine.
template <class T>
ZERO_MULTIVERSION void sum1(const T* a, Sum<T>* out, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) out[i] = widen(a[i]);
}

template <class T>
ZERO_MULTIVERSION void sum2(const T* a, const T* b, Sum<T>* out, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) out[i] = widen(a[i]) + widen(b[i]);
}

template <class T>
ZERO_MULTIVERSION void sum3(const T* a, const T* b, const T* c, Sum<T>* out, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) out[i] = (widen(a[i]) + widen(b[i])) + widen(c[i]);
}

template <class T>
ZERO_MULTIVERSION void sum4(const T* a, const T* b, const T* c, const T* d, Sum<T>* out, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) out[i] = (widen(a[i]) + widen(b[i])) + (widen(c[i]) + widen(d[i]));
}

template <class T>
ZERO_MULTIVERSION void round_all(const float* sums, T* out, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) narrow(sums[i], out[i]);
}

template <class T>
void sum_few(Sources<T> s, std::int64_t at, Sum<T>* out, std::int64_t n) {
  switch (s.size()) {
    case 1: return sum1(s[0] + at, out, n);
    case 2: return sum2(s[0] + at, s[1] + at, out, n);
    case 3: return sum3(s[0] + at, s[1] + at, s[2] + at, out, n);
    default: return sum4(s[0] + at, s[1] + at, s[2] + at, s[3] + at, out, n);
  }
}

// `out` is no source here; `scratch` has one block for each level of the tree.
template <class T>
void sum_block(Sources<T> s, std::int64_t at, Sum<T>* out, std::int64_t n, Sum<T>* scratch) {
  if (s.size() <= 4) return sum_few(s, at, out, n);
  const auto left = std::bit_floor(s.size() - 1);
  sum_block(s.first(left), at, out, n, scratch);
  sum_block(s.subspan(left), at, scratch, n, scratch + kBlock);
  sum2<Sum<T>>(out, scratch, out, n);
}

// Elements [begin, begin + count) of the sources.
template <class T>
void sum_range(Sources<T> s, std::int64_t begin, Sum<T>* out, std::int64_t count) {
  if (s.size() <= 4) return sum_few(s, begin, out, count);
  const auto left = std::bit_floor(s.size() - 1);
  std::array<Sum<T>, kBlock * kDepth> scratch;
  Sum<T>* const a = scratch.data();
  Sum<T>* const b = a + kBlock;
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const auto n = std::min(kBlock, count - at);
    sum_block(s.first(left), begin + at, a, n, b);
    sum_block(s.subspan(left), begin + at, b, n, b + kBlock);
    sum2<Sum<T>>(a, b, out + at, n);
  }
}

template <class T>
Sources<T> typed(std::span<const void* const> sources) {
  return {reinterpret_cast<const T* const*>(sources.data()), sources.size()};
}

template <class T>
void sum(std::span<const void* const> sources, void* out, std::int64_t count) {
  sum_range(typed<T>(sources), 0, static_cast<Sum<T>*>(out), count);
}

template <class T>
void sum_and_round(std::span<const void* const> sources, void* out, std::int64_t count) {
  std::array<float, kBlock> sums;
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const auto n = std::min(kBlock, count - at);
    sum_range(typed<T>(sources), at, sums.data(), n);
    round_all(sums.data(), static_cast<T*>(out) + at, n);
  }
}

}  // namespace

void tree_sum(std::span<const void* const> sources, Dtype dtype, void* out, std::int64_t count) {
  switch (dtype) {
    case Dtype::f32: return sum<float>(sources, out, count);
    case Dtype::f64: return sum<double>(sources, out, count);
    case Dtype::bf16: return sum<Bf16>(sources, out, count);
    case Dtype::f16: return sum<Fp16>(sources, out, count);
    case Dtype::i64: return sum<std::uint64_t>(sources, out, count);
    case Dtype::i32: return sum<std::uint32_t>(sources, out, count);
    case Dtype::u8: break;
  }
  throw ConfigError("a sum of " + std::string(name(dtype)) + " values", "add up int32 or a floating-point type");
}

void tree_sum_rounded(std::span<const void* const> sources, Dtype dtype, void* out, std::int64_t count) {
  switch (dtype) {
    case Dtype::bf16: return sum_and_round<Bf16>(sources, out, count);
    case Dtype::f16: return sum_and_round<Fp16>(sources, out, count);
    default: return zero::tree_sum(sources, dtype, out, count);
  }
}

}  // namespace zero
