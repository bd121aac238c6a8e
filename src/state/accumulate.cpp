#include "state/accumulate.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/half.h"

namespace zero {
namespace {

constexpr std::int64_t kBlock = 1024;

template <class From, class To>
void load(const From* gradient, To* sum, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) sum[i] = widen(gradient[i]);
}

template <class To>
void add_left(const To* source, To* sum, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) sum[i] = source[i] + sum[i];
}

template <class From, class To>
void fold_typed(const Fold& fold, std::span<void* const> levels, const From* gradient, std::int64_t count) {
  std::array<To, kBlock> sum;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    if (gradient != nullptr) {
      load(gradient + begin, sum.data(), n);
    } else {
      std::fill_n(sum.data(), n, To{0});
    }
    for (const int level : fold.sources)
      add_left(static_cast<const To*>(levels[static_cast<std::size_t>(level)]) + begin, sum.data(), n);
    std::copy_n(sum.data(), n, static_cast<To*>(levels[static_cast<std::size_t>(fold.target)]) + begin);
  }
}

}  // namespace

Fold fold_of(bool tree, int levels, int micro, int micro_batches) {
  const int top = levels - 1;
  if (!tree) return {micro == 0 ? std::vector<int>{} : std::vector<int>{top}, top};
  const auto waiting = static_cast<unsigned>(micro);
  const bool last = micro == micro_batches - 1;
  const int carries = last ? static_cast<int>(std::bit_width(waiting)) : std::countr_one(waiting);
  Fold fold{{}, last ? top : carries};
  for (int level = 0; level < carries; ++level)
    if ((waiting >> level) & 1u) fold.sources.push_back(level);
  return fold;
}

void fold(const Fold& fold, std::span<void* const> levels, const void* gradient, Dtype dtype, std::int64_t count) {
  switch (dtype) {
    case Dtype::f64: return fold_typed<double, double>(fold, levels, static_cast<const double*>(gradient), count);
    case Dtype::bf16: return fold_typed<Bf16, float>(fold, levels, static_cast<const Bf16*>(gradient), count);
    case Dtype::f16: return fold_typed<Fp16, float>(fold, levels, static_cast<const Fp16*>(gradient), count);
    default: return fold_typed<float, float>(fold, levels, static_cast<const float*>(gradient), count);
  }
}

}  // namespace zero
