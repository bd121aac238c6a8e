// An exact sum of doubles that is not negative: a fixed-point number wide enough for every finite double, so
// that the result depends neither on the order of the addends nor on how they are split over ranks.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "base/targets.h"
#include "zero/dtype.h"

namespace zero {

class ExactSum {
 public:
  // Limb i counts multiples of 2^(32 i - kBias).
  static constexpr int kLimbs = 70;
  static constexpr int kBias = 1088;
  static constexpr int kLimbBits = 32;
  static constexpr std::uint64_t kLimbMask = 0xffffffff;

  // What a finite value adds to three limbs.
  struct Parts {
    int first;
    std::int64_t limbs[3];
  };
  ZERO_BOTH static Parts parts_of(double value) {
    constexpr std::int64_t hidden = std::int64_t{1} << 52;
    constexpr int last_bit = kBias - 1075;  // position of the last bit of a double, less its exponent
    const auto bits = std::bit_cast<std::int64_t>(value);
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
    const auto mantissa = static_cast<std::uint64_t>((bits & (hidden - 1)) | (exponent != 0 ? hidden : 0));
    const int position = exponent + (exponent == 0 ? 1 : 0) + last_bit, shift = position % kLimbBits;
    const std::int64_t sign = bits < 0 ? -1 : 1;
    const std::uint64_t low = mantissa << shift;
    return {position / kLimbBits,
            {sign * static_cast<std::int64_t>(low & kLimbMask), sign * static_cast<std::int64_t>(low >> kLimbBits),
             sign * static_cast<std::int64_t>(mantissa >> 1 >> (63 - shift))}};
  }

  // Adds a finite value without rounding. The sum may be negative in between, not where it is read.
  void add(double value);
  // From the smallest to the largest of some values that are positive; infinity and 0 where none is.
  struct Extent {
    double smallest, largest;
  };
  // The same for each of `values`, none of them negative, quicker where their extent, or a larger one that is given, is
  // small. Those that are not finite are left out; returns how many.
  std::int64_t add_finite(std::span<const double> values, Extent extent);
  // Adds the limbs() of another sum. Throws ConfigError unless there are kLimbs of them.
  void add(std::span<const std::int64_t> limbs);

  // Brings every limb into [0, 2^32). Happens by itself before a limb can overflow.
  void normalise();
  // Normalised: equal sums have equal limbs.
  std::span<const std::int64_t, kLimbs> limbs();
  // The sum, correctly rounded; infinite beyond the largest double.
  double value() const;

 private:
  static constexpr std::int64_t kSafeAdds = std::int64_t{1} << 30;
  // Adds `values`, a batch at most; false, and nothing added, unless they are of similar size and come in eights.
  bool add_similar(std::span<const double> values, Extent extent);
  void count();

  std::array<std::int64_t, kLimbs> limbs_{};
  std::int64_t adds_ = 0;  // since the limbs were normalised
};

// Adds the squares of `values` to `sum` in blocks of kSquareBlock: a block's squares are added in
// double in one fixed order (the last block as if filled up with zeros), the blocks exactly. The result
// is therefore the same however an array is cut at multiples of kSquareBlock. A block whose sum is not
// finite is left out and counted in `nonfinite`.
inline constexpr std::int64_t kSquareBlock = 16;
// What a device adds them up in: the limbs, then the blocks that are not finite.
inline constexpr int kSquareLimbs = ExactSum::kLimbs + 1;
void sum_of_squares(std::span<const float> values, ExactSum& sum, std::int64_t& nonfinite);
void sum_of_squares(std::span<const double> values, ExactSum& sum, std::int64_t& nonfinite);
// `count` values of a floating-point dtype; 16-bit ones as if they were fp32.
void sum_of_squares(const void* values, Dtype dtype, std::int64_t count, ExactSum& sum, std::int64_t& nonfinite);

}  // namespace zero
