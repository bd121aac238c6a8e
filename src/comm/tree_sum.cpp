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

// Of a node of the tree: leaves, or sums of smaller nodes, which are in order.
template <class T>
struct Sources {
  std::span<const T* const> at;
  std::span<const LeafRange> nodes;  // none: leaves

  std::size_t size() const { return at.size(); }
  const T* operator[](std::size_t s) const { return at[s]; }
  std::size_t left() const { return nodes.empty() ? std::bit_floor(at.size() - 1) : left_half(nodes); }
  Sources first(std::size_t n) const { return {at.first(n), nodes.empty() ? nodes : nodes.first(n)}; }
  Sources from(std::size_t n) const { return {at.subspan(n), nodes.empty() ? nodes : nodes.subspan(n)}; }
  // That sum_few() adds in the order of the tree.
  bool few() const { return at.size() < 3 || (at.size() <= 4 && left() == 2); }
};

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
  if (s.few()) return sum_few(s, at, out, n);
  const std::size_t left = s.left();
  sum_block(s.first(left), at, out, n, scratch);
  sum_block(s.from(left), at, scratch, n, scratch + kBlock);
  sum2<Sum<T>>(out, scratch, out, n);
}

// Elements [begin, begin + count) of the sources.
template <class T>
void sum_range(Sources<T> s, std::int64_t begin, Sum<T>* out, std::int64_t count) {
  if (s.few()) return sum_few(s, begin, out, count);
  const std::size_t left = s.left();
  std::array<Sum<T>, kBlock * kDepth> scratch;
  Sum<T>* const a = scratch.data();
  Sum<T>* const b = a + kBlock;
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const auto n = std::min(kBlock, count - at);
    sum_block(s.first(left), begin + at, a, n, b);
    sum_block(s.from(left), begin + at, b, n, b + kBlock);
    sum2<Sum<T>>(a, b, out + at, n);
  }
}

template <class T>
Sources<T> typed(std::span<const void* const> sources, std::span<const LeafRange> nodes = {}) {
  return {{reinterpret_cast<const T* const*>(sources.data()), sources.size()}, nodes};
}

template <class T>
void sum(std::span<const void* const> sources, std::span<const LeafRange> nodes, void* out, std::int64_t count) {
  sum_range(typed<T>(sources, nodes), 0, static_cast<Sum<T>*>(out), count);
}

void sum_nodes(std::span<const void* const> sources, std::span<const LeafRange> nodes, Dtype dtype, void* out,
               std::int64_t count) {
  switch (dtype) {
    case Dtype::f32: return sum<float>(sources, nodes, out, count);
    case Dtype::f64: return sum<double>(sources, nodes, out, count);
    case Dtype::bf16: return sum<Bf16>(sources, nodes, out, count);
    case Dtype::f16: return sum<Fp16>(sources, nodes, out, count);
    case Dtype::i64: return sum<std::uint64_t>(sources, nodes, out, count);
    case Dtype::i32: return sum<std::uint32_t>(sources, nodes, out, count);
    case Dtype::u8: break;
  }
  throw ConfigError("a sum of " + std::string(name(dtype)) + " values", "add up int32 or a floating-point type");
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
  sum_nodes(sources, {}, dtype, out, count);
}

void group_sum(const SumParts& sum, std::span<const void* const> sources, Dtype dtype, void* out, std::int64_t pitch,
               std::int64_t count) {
  const std::span<const LeafRange> nodes = sum.nodes;
  char* const sums = static_cast<char*>(out);
  sum.each_sum([&](std::size_t which, std::size_t first, std::size_t number) {
    sum_nodes(sources.subspan(first, number), nodes.subspan(first, number), dtype,
              sums + static_cast<std::int64_t>(which) * pitch * size_of(accumulation(dtype)), count);
  });
}

void tree_sum_rounded(std::span<const void* const> sources, Dtype dtype, void* out, std::int64_t count) {
  switch (dtype) {
    case Dtype::bf16: return sum_and_round<Bf16>(sources, out, count);
    case Dtype::f16: return sum_and_round<Fp16>(sources, out, count);
    default: return zero::tree_sum(sources, dtype, out, count);
  }
}

}  // namespace zero
