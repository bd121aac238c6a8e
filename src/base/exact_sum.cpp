#include "base/exact_sum.h"

#include <bit>
#include <cmath>
#include <string>

#include "zero/error.h"

namespace zero {

namespace {

constexpr int kLimbBits = 32;
constexpr std::uint64_t kLimbMask = 0xffffffff;
constexpr int kMantissaBits = 52;

// The squares of one block: lane i takes values i and i + 8, then the lanes are added by halves.
template <class T>
double block_sum(const T* values) {
  double lanes[8];
  for (int i = 0; i < 8; ++i) {
    const double low = values[i], high = values[i + 8];
    lanes[i] = low * low + high * high;
  }
  for (int i = 0; i < 4; ++i) lanes[i] += lanes[i + 4];
  for (int i = 0; i < 2; ++i) lanes[i] += lanes[i + 2];
  return lanes[0] + lanes[1];
}

template <class T>
void add_blocks(std::span<const T> values, ExactSum& sum, std::int64_t& nonfinite) {
  const auto take = [&](const T* block) {
    const double squares = block_sum(block);
    if (std::isfinite(squares)) {
      sum.add(squares);
    } else {
      ++nonfinite;
    }
  };
  while (values.size() >= kSquareBlock) {
    take(values.data());
    values = values.subspan(kSquareBlock);
  }
  if (values.empty()) return;
  T tail[kSquareBlock] = {};
  for (std::size_t i = 0; i < values.size(); ++i) tail[i] = values[i];
  take(tail);
}

}  // namespace

void ExactSum::add(double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const int exponent = static_cast<int>(bits >> kMantissaBits & 0x7ff);
  const bool normal = exponent != 0;
  const std::uint64_t mantissa = (bits & ((std::uint64_t{1} << kMantissaBits) - 1)) | std::uint64_t{normal}
                                                                                          << kMantissaBits;
  // The value is mantissa * 2^(position - kBias).
  const int position = exponent + !normal - 1075 + kBias;
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
  add_blocks(values, sum, nonfinite);
}

void sum_of_squares(std::span<const double> values, ExactSum& sum, std::int64_t& nonfinite) {
  add_blocks(values, sum, nonfinite);
}

}  // namespace zero
