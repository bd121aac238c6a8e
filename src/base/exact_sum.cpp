#include "base/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "base/half.h"
#include "base/targets.h"
#include "zero/error.h"

namespace zero {

namespace {

constexpr int kMantissaBits = 52;
constexpr int kMaxExponent = 0x7fe;

// Blocks whose sums are added together, and how many binary orders those may span. The unit of their upper parts is
// kUnit orders below the largest: 2^8 values below 2^(kUnit + 1) units are at most 2^53 units. What is left of each is
// at most a unit either way, in all at most 2^8 units, which are 2^53 last bits of the smallest.
constexpr std::int64_t kBatch = 256;
constexpr int kUnit = 44;
constexpr int kSpread = 37;
constexpr double kShifter = 0x1.8p52;
constexpr int kShifterBits = 52;

constexpr std::int64_t kStretch = 16 * kBatch;  // blocks of 32 to 128 bytes
constexpr std::int64_t kStreams = 4;            // and lanes
constexpr std::size_t kOctet = 8;

// Four lanes are one vector, since what the compiler makes of single ones is slower. Passed by reference: how they are
// returned depends on the instruction set.
using Quad = double __attribute__((vector_size(32)));

std::int64_t exponent_of(double value) {
  return std::bit_cast<std::int64_t>(value) >> kMantissaBits & 0x7ff;
}

struct Parts {
  double high, low;
};

// The sum in two parts: that of the multiples of the last bit of `shifter` next to each value, and that of what is
// left. Two sums at a time, since one waits for its last addition.
ZERO_MULTIVERSION Parts split_sum(const double* values, std::int64_t octets, double shifter) {
  Quad high[2] = {}, low[2] = {};
  for (std::int64_t i = 0; i < octets; ++i)
    for (int half = 0; half < 2; ++half, values += 4) {
      const Quad value = {values[0], values[1], values[2], values[3]};
      const Quad part = (value + shifter) - shifter;
      high[half] += part;
      low[half] += value - part;
    }
  const Quad upper = high[0] + high[1], lower = low[0] + low[1];
  return {(upper[0] + upper[2]) + (upper[1] + upper[3]), (lower[0] + lower[2]) + (lower[1] + lower[3])};
}

// The squares of a block: lane i takes values i, i + 4, i + 8 and i + 12.
template <class T>
void square_block(const T* values, Quad& lanes) {
  Quad squares[4];
  for (int i = 0; i < 4; ++i) {
    const T* const four = values + 4 * i;
    const Quad wide = {double{widen(four[0])}, double{widen(four[1])}, double{widen(four[2])}, double{widen(four[3])}};
    squares[i] = wide * wide;
  }
  lanes = (squares[0] + squares[2]) + (squares[1] + squares[3]);
}

// The squares of two blocks: lanes 0 and 1 are the first one's.
template <class T>
void square_two(const T* first, const T* second, Quad& lanes) {
  Quad a, b;
  square_block(first, a);
  square_block(second, b);
  lanes = Quad{a[0], a[1], b[0], b[1]} + Quad{a[2], a[3], b[2], b[3]};
}

// The squares of each block are added by halves. `sums` has those of block i of all streams before those of i + 1.
template <class T>
ZERO_MULTIVERSION ExactSum::Extent block_sums(const T* values, std::int64_t apart, double* sums, std::int64_t blocks) {
  const Quad infinite = Quad{} + std::numeric_limits<double>::infinity();
  Quad smallest = infinite, largest{};
  for (std::int64_t b = 0; b < blocks; ++b, values += kSquareBlock, sums += kStreams) {
    Quad low, high;
    square_two(values, values + 2 * apart, low);
    square_two(values + apart, values + 3 * apart, high);
    const Quad four = Quad{low[0], high[0], low[2], high[2]} + Quad{low[1], high[1], low[3], high[3]};
    const Quad positive = four == 0 ? infinite : four;
    smallest = positive < smallest ? positive : smallest;
    largest = four > largest ? four : largest;
    for (int i = 0; i < kStreams; ++i) sums[i] = four[i];
  }
  return {std::min({smallest[0], smallest[1], smallest[2], smallest[3]}),
          std::max({largest[0], largest[1], largest[2], largest[3]})};
}

// Adds the squares of `each` blocks of each stream.
template <class T>
void add_streams(const T* values, std::int64_t apart, std::int64_t each, ExactSum& sum, std::int64_t& nonfinite) {
  double sums[kBatch];
  for (std::int64_t at = 0; at < each; at += kBatch / kStreams) {
    const auto n = static_cast<std::size_t>(std::min(kBatch / kStreams, each - at));
    const auto extent = block_sums(values + at * kSquareBlock, apart, sums, static_cast<std::int64_t>(n));
    const std::size_t count = n * kStreams, filled = (count + kOctet - 1) / kOctet * kOctet;
    std::fill(sums + count, sums + filled, 0.0);
    nonfinite += sum.add_finite({sums, filled}, extent);
  }
}

// In streams, which memory delivers at more than one's speed. What they leave over is filled up with zeros.
template <class T>
void add_blocks(const T* values, std::int64_t blocks, ExactSum& sum, std::int64_t& nonfinite) {
  const std::int64_t each = blocks / kStreams, rest = blocks % kStreams;
  add_streams(values, each * kSquareBlock, each, sum, nonfinite);
  if (rest == 0) return;
  T last[kStreams * kSquareBlock] = {};
  std::copy_n(values + (blocks - rest) * kSquareBlock, rest * kSquareBlock, last);
  add_streams(last, kSquareBlock, 1, sum, nonfinite);
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

ZERO_MULTIVERSION void widen_all(const Fp16* values, float* wide, std::size_t n) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < n; ++i) wide[i] = widen(values[i]);
}

// Widening these costs so much that it pays to do eight at a time.
void add_widened(std::span<const Fp16> values, ExactSum& sum, std::int64_t& nonfinite) {
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
  const Parts parts = parts_of(value);
  std::int64_t* const limb = limbs_.data() + parts.first;
  for (int i = 0; i < 3; ++i) limb[i] += parts.limbs[i];
  count();
}

std::int64_t ExactSum::add_finite(std::span<const double> values, Extent extent) {
  std::int64_t nonfinite = 0;
  for (std::size_t at = 0; at < values.size(); at += kBatch) {
    const auto batch = values.subspan(at, std::min<std::size_t>(kBatch, values.size() - at));
    if (add_similar(batch, extent)) continue;
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

bool ExactSum::add_similar(std::span<const double> values, Extent extent) {
  const std::int64_t least = exponent_of(extent.smallest), most = exponent_of(extent.largest);
  // Nothing may overflow, and no bit be so small that a processor might flush it.
  const bool safe = least > kMantissaBits && most - kUnit + kShifterBits <= kMaxExponent;
  const bool zeros = extent.largest == 0;
  if (values.size() % kOctet != 0 || !(zeros || (safe && most - least <= kSpread))) return false;
  const double shifter = zeros ? 0 : kShifter * std::bit_cast<double>((most - kUnit) << kMantissaBits);
  const auto [high, low] = split_sum(values.data(), static_cast<std::int64_t>(values.size() / kOctet), shifter);
  if (!std::isfinite(high)) return false;
  add(high);
  add(low);
  return true;
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
    case Dtype::bf16: return add_squares(std::span(static_cast<const Bf16*>(values), n), sum, nonfinite);
    case Dtype::f16: return add_widened(std::span(static_cast<const Fp16*>(values), n), sum, nonfinite);
    default: return sum_of_squares(std::span(static_cast<const float*>(values), n), sum, nonfinite);
  }
}

}  // namespace zero
