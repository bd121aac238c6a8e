#include "device/accumulate.h"

#include <algorithm>
#include <array>

#include "base/half.h"

namespace zero {
namespace {

constexpr std::int64_t kFoldedAtOnce = 1024;

template <class From, class To>
void load(const From* gradient, To* sum, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) sum[i] = widen(gradient[i]);
}

template <class Kept, class To>
void add_left(const Kept* source, To* sum, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) sum[i] = widen(source[i]) + sum[i];
}

void keep(const double* sum, double* level, std::int64_t n) {
  std::copy_n(sum, n, level);
}
void keep(const float* sum, float* level, std::int64_t n) {
  std::copy_n(sum, n, level);
}
template <class Narrow>
void keep(const float* sum, Narrow* level, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) narrow(sum[i], level[i]);
}

template <class From, class Kept>
void fold_typed(const Fold& fold, std::span<void* const> levels, const From* gradient, std::int64_t count) {
  using To = decltype(widen(From{}));
  std::array<To, kFoldedAtOnce> sum;
  const auto level = [&](int i) { return static_cast<Kept*>(levels[static_cast<std::size_t>(i)]); };
  for (std::int64_t begin = 0; begin < count; begin += kFoldedAtOnce) {
    const std::int64_t n = std::min(kFoldedAtOnce, count - begin);
    if (gradient != nullptr) {
      load(gradient + begin, sum.data(), n);
    } else {
      std::fill_n(sum.data(), n, To{0});
    }
    for (const int source : fold.sources) add_left(level(source) + begin, sum.data(), n);
    keep(sum.data(), level(fold.target) + begin, n);
  }
}

template <class From>
void fold_into(Dtype kept, const Fold& fold, std::span<void* const> levels, const void* gradient, std::int64_t count) {
  const auto* const from = static_cast<const From*>(gradient);
  switch (kept) {
    case Dtype::bf16: return fold_typed<From, Bf16>(fold, levels, from, count);
    case Dtype::f16: return fold_typed<From, Fp16>(fold, levels, from, count);
    default: return fold_typed<From, float>(fold, levels, from, count);
  }
}

}  // namespace

void fold(const Fold& fold, std::span<void* const> levels, Dtype kept, const void* gradient, Dtype dtype,
          std::int64_t count) {
  switch (dtype) {
    case Dtype::f64: return fold_typed<double, double>(fold, levels, static_cast<const double*>(gradient), count);
    case Dtype::bf16: return fold_into<Bf16>(kept, fold, levels, gradient, count);
    case Dtype::f16: return fold_into<Fp16>(kept, fold, levels, gradient, count);
    default: return fold_into<float>(kept, fold, levels, gradient, count);
  }
}

}  // namespace zero
