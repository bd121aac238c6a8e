#include "base/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "base/half.h"
#include "base/simd.h"
#include "zero/error.h"

namespace zero {

namespace {

constexpr int kLimbBits = 32;
constexpr std::uint64_t kLimbMask = 0xffffffff;
constexpr int kMantissaBits = 52;
constexpr std::int64_t kHidden = std::int64_t{1} << kMantissaBits;
constexpr std::int64_t kInfinity = std::int64_t{0x7ff} << kMantissaBits;
constexpr int kLastBit = ExactSum::kBias - 1075;  // position of the last bit of a double, less its exponent

// Blocks whose sums are added together, and how many binary orders those may span: kBatch integers of
// 27 + kSpread bits fill 63.
constexpr std::int64_t kBatch = 256;
constexpr int kHalfBits = 27;
constexpr int kSpread = 28;
constexpr std::int64_t kStretch = 16 * kBatch;  // blocks of 64 bytes or 128

struct Extent {
  std::int64_t smallest, largest;
};

// Of the bits of the values that are not zero; as integers they are ordered like the values.
ZERO_MULTIVERSION Extent extent_of(const double* values, std::int64_t n) {
  Extent extent{kInfinity, 0};
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::int64_t>(values[i]);
    const std::int64_t small = bits == 0 ? kInfinity : bits;
    extent.smallest = small < extent.smallest ? small : extent.smallest;
    extent.largest = bits > extent.largest ? bits : extent.largest;
  }
  return extent;
}

struct Halves {
  std::uint64_t low, high;
};

// The sum of normal numbers and zeros in units of the last bit at `exponent`: low + high * 2^kHalfBits.
ZERO_MULTIVERSION Halves fixed_point(const double* values, std::int64_t n, std::int64_t exponent) {
  Halves sum{0, 0};
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::int64_t>(values[i]);
    const std::int64_t shift = bits == 0 ? 0 : (bits >> kMantissaBits) - exponent;
    const std::int64_t mantissa = bits == 0 ? 0 : (bits & (kHidden - 1)) | kHidden;
    sum.low += static_cast<std::uint64_t>((mantissa & ((1 << kHalfBits) - 1)) << shift);
    sum.high += static_cast<std::uint64_t>((mantissa >> kHalfBits) << shift);
  }
  return sum;
}

using Quad = double __attribute__((vector_size(32)));

// The squares of each block: lane i takes values i and i + 8, then the lanes are added by halves. Four
// lanes are one vector, since what the compiler makes of single ones is slower.
template <class T>
ZERO_MULTIVERSION void block_sums(const T* values, double* sums, std::int64_t blocks) {
  for (std::int64_t b = 0; b < blocks; ++b, values += kSquareBlock) {
    Quad squares[4];
    for (int i = 0; i < 4; ++i) {
      const T* const four = values + 4 * i;
      const Quad wide = {double{four[0]}, double{four[1]}, double{four[2]}, double{four[3]}};
      squares[i] = wide * wide;
    }
    const Quad lanes = (squares[0] + squares[2]) + (squares[1] + squares[3]);
    sums[b] = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  }
}

template <class T>
void add_blocks(const T* values, std::int64_t blocks, ExactSum& sum, std::int64_t& nonfinite) {
  double sums[kBatch];
  for (std::int64_t at = 0; at < blocks; at += kBatch) {
    const auto n = std::min(kBatch, blocks - at);
    block_sums(values + at * kSquareBlock, sums, n);
    nonfinite += sum.add_finite({sums, static_cast<std::size_t>(n)});
  }
}

// From the end, stretch by stretch: what is updated first afterwards is then still in the caches.
template <class T>
void add_squares(std::span<const T> values, ExactSum& sum, std::int64_t& nonfinite) {
  const auto blocks = static_cast<std::int64_t>(values.size()) / kSquareBlock;
  const auto rest = values.subspan(static_cast<std::size_t>(blocks * kSquareBlock));
  T tail[kSquareBlock] = {};
  std::ranges::copy(rest, tail);
  if (!rest.empty()) add_blocks(tail, 1, sum, nonfinite);
  for (std::int64_t end = blocks; end > 0;) {
    const auto begin = (end - 1) / kStretch * kStretch;
    add_blocks(values.data() + begin * kSquareBlock, end - begin, sum, nonfinite);
    end = begin;
  }
}

template <class Narrow>
ZERO_MULTIVERSION void widen_all(const Narrow* values, float* wide, std::size_t n) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < n; ++i) wide[i] = widen(values[i]);
}

template <class Narrow>
void add_widened(std::span<const Narrow> values, ExactSum& sum, std::int64_t& nonfinite) {
  constexpr std::size_t chunk = kBatch * kSquareBlock;
  float wide[chunk];
  for (std::size_t end = values.size(); end > 0;) {
    const std::size_t begin = (end - 1) / chunk * chunk;
    widen_all(values.data() + begin, wide, end - begin);
    add_squares(std::span<const float>(wide, end - begin), sum, nonfinite);
    end = begin;
  }
}

}  // namespace

void ExactSum::add(double value) {
  const auto bits = std::bit_cast<std::int64_t>(value);
  const int exponent = static_cast<int>(bits >> kMantissaBits & 0x7ff);
  const bool normal = exponent != 0;
  const std::int64_t mantissa = (bits & (kHidden - 1)) | (normal ? kHidden : 0);
  add(static_cast<std::uint64_t>(mantissa), exponent + !normal + kLastBit);
}

std::int64_t ExactSum::add_finite(std::span<const double> values) {
  std::int64_t nonfinite = 0;
  for (std::size_t at = 0; at < values.size(); at += kBatch) {
    const auto batch = values.subspan(at, std::min<std::size_t>(kBatch, values.size() - at));
    if (add_similar(batch)) continue;
    for (const double value : batch) {
      if (std::isfinite(value)) {
        add(value);
      } else {
        ++nonfinite;
      }
    }
  }
  return nonfinite;
}

bool ExactSum::add_similar(std::span<const double> values) {
  const auto n = static_cast<std::int64_t>(values.size());
  const auto [smallest, largest] = extent_of(values.data(), n);
  const std::int64_t exponent = smallest >> kMantissaBits;
  const bool normal = smallest >= kHidden && largest < kInfinity;
  if (!normal || (largest >> kMantissaBits) - exponent > kSpread) return false;
  const auto [low, high] = fixed_point(values.data(), n, exponent);
  add(low, static_cast<int>(exponent) + kLastBit);
  add(high, static_cast<int>(exponent) + kLastBit + kHalfBits);
  return true;
}

void ExactSum::add(std::uint64_t mantissa, int position) {
  const int shift = position % kLimbBits;
  const std::uint64_t low = mantissa << shift;
  std::int64_t* const limb = limbs_.data() + position / kLimbBits;
  limb[0] += static_cast<std::int64_t>(low & kLimbMask);
  limb[1] += static_cast<std::int64_t>(low >> kLimbBits);
  limb[2] += static_cast<std::int64_t>(mantissa >> 1 >> (63 - shift));
  count();
}

void ExactSum::add(std::span<const std::int64_t> limbs) {
  if (limbs.size() != kLimbs) {
    throw ConfigError("an exact sum has " + std::to_string(kLimbs) + " limbs, not " + std::to_string(limbs.size()));
  }
  for (std::size_t i = 0; i < kLimbs; ++i) limbs_[i] += limbs[i];
  count();
}

void ExactSum::count() {
  if (++adds_ == kSafeAdds) normalise();
}

void ExactSum::normalise() {
  for (std::size_t i = 0; i + 1 < kLimbs; ++i) {
    limbs_[i + 1] += limbs_[i] >> kLimbBits;
    limbs_[i] &= kLimbMask;
  }
  adds_ = 0;
}

std::span<const std::int64_t, ExactSum::kLimbs> ExactSum::limbs() {
  normalise();
  return limbs_;
}

double ExactSum::value() const {
  ExactSum sum = *this;
  const auto limbs = sum.limbs();
  int top = kLimbs - 1;
  while (top > 0 && limbs[static_cast<std::size_t>(top)] == 0) --top;
  const auto limb = [&](int i) { return i < 0 ? 0 : static_cast<std::uint64_t>(limbs[static_cast<std::size_t>(i)]); };
  const std::uint64_t high = limb(top) << kLimbBits | limb(top - 1);
  if (high == 0) return 0;
  // 64 leading bits; the last one also says whether anything follows, so that they round as the whole.
  const int zeros = std::countl_zero(high);
  std::uint64_t leading = high << zeros | limb(top - 2) >> (kLimbBits - zeros);
  bool more = (limb(top - 2) << zeros & kLimbMask) != 0;
  for (int i = top - 3; i >= 0 && !more; --i) more = limb(i) != 0;
  leading |= std::uint64_t{more};
  return std::ldexp(static_cast<double>(leading), kLimbBits * (top - 1) - kBias - zeros);
}

void sum_of_squares(std::span<const float> values, ExactSum& sum, std::int64_t& nonfinite) {
  add_squares(values, sum, nonfinite);
}

void sum_of_squares(std::span<const double> values, ExactSum& sum, std::int64_t& nonfinite) {
  add_squares(values, sum, nonfinite);
}

void sum_of_squares(const void* values, Dtype dtype, std::int64_t count, ExactSum& sum, std::int64_t& nonfinite) {
  const auto n = static_cast<std::size_t>(count);
  switch (dtype) {
    case Dtype::f64: return sum_of_squares(std::span(static_cast<const double*>(values), n), sum, nonfinite);
    case Dtype::bf16: return add_widened(std::span(static_cast<const Bf16*>(values), n), sum, nonfinite);
    case Dtype::f16: return add_widened(std::span(static_cast<const Fp16*>(values), n), sum, nonfinite);
    default: return sum_of_squares(std::span(static_cast<const float*>(values), n), sum, nonfinite);
  }
}

}  // namespace zero
