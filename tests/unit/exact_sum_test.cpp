#include "base/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "zero/error.h"

namespace zero::exact_sum_test {

using Random = std::mt19937_64;

// The same number, one bit at a time.
class BitByBit {
 public:
  void add(double value) {
    int exponent = 0;
    auto mantissa = static_cast<std::uint64_t>(std::ldexp(std::frexp(value, &exponent), 53));
    for (std::size_t at = static_cast<std::size_t>(exponent - 53 + kOffset); mantissa != 0; ++at, mantissa >>= 1) {
      if ((mantissa & 1) != 0) add_bit(at);
    }
  }

  // Rounded to nearest, ties to even. For sums that are neither subnormal nor overflow.
  double value() const {
    const auto top = std::find(bits_.rbegin(), bits_.rend(), true);
    const auto last = bits_.rend() - top - 53;
    std::uint64_t mantissa = 0;
    for (auto at = last + 52; at >= last; --at) mantissa = mantissa << 1 | std::uint64_t{bit(at)};
    const bool beyond = std::find(bits_.begin(), bits_.begin() + last - 1, true) != bits_.begin() + last - 1;
    mantissa += std::uint64_t{bit(last - 1) && (beyond || (mantissa & 1) != 0)};
    return std::ldexp(static_cast<double>(mantissa), static_cast<int>(last) - kOffset);
  }

 private:
  static constexpr int kOffset = 1200;
  bool bit(std::ptrdiff_t at) const { return bits_[static_cast<std::size_t>(at)]; }
  void add_bit(std::size_t at) {
    while (bits_[at]) bits_[at++] = false;
    bits_[at] = true;
  }

  std::vector<bool> bits_ = std::vector<bool>(2400);
};

// Any non-negative finite double, all exponents alike.
double any_double(Random& random) {
  for (;;) {
    const double value = std::bit_cast<double>(random() >> 1);
    if (std::isfinite(value) && value < 1e300) return value;
  }
}

std::vector<std::int64_t> limbs(ExactSum sum) {
  const auto view = sum.limbs();
  return {view.begin(), view.end()};
}

TEST(ExactSum, RoundsTheExactSumCorrectly) {
  Random random(1);
  for (int round = 0; round < 100; ++round) {
    ExactSum sum;
    BitByBit reference;
    for (int i = 0; i < 100; ++i) {
      const double value = any_double(random);
      sum.add(value);
      reference.add(value);
      ASSERT_EQ(sum.value(), reference.value());
    }
  }
}

TEST(ExactSum, DoesNotDependOnTheOrder) {
  Random random(2);
  std::vector<double> values(1000);
  for (double& value : values) value = any_double(random);
  ExactSum expected;
  for (const double value : values) expected.add(value);
  for (int round = 0; round < 10; ++round) {
    std::ranges::shuffle(values, random);
    std::array<ExactSum, 3> ranks;
    for (const double value : values) ranks[random() % 3].add(value);
    ExactSum sum;
    for (ExactSum& rank : ranks) sum.add(rank.limbs());
    ASSERT_EQ(limbs(sum), limbs(expected));
    ASSERT_EQ(sum.value(), expected.value());
  }
}

TEST(ExactSum, Extremes) {
  constexpr double smallest = std::numeric_limits<double>::denorm_min();
  constexpr double largest = std::numeric_limits<double>::max();
  EXPECT_EQ(ExactSum{}.value(), 0);
  ExactSum small;
  for (int i = 0; i < 3; ++i) small.add(smallest);
  EXPECT_EQ(small.value(), 3 * smallest);
  small.add(0.0);
  small.add(std::numeric_limits<double>::min());
  EXPECT_EQ(small.value(), std::numeric_limits<double>::min() + 3 * smallest);
  ExactSum large;
  large.add(largest);
  EXPECT_EQ(large.value(), largest);
  large.add(smallest);
  EXPECT_EQ(large.value(), largest);
  large.add(largest);
  EXPECT_EQ(large.value(), std::numeric_limits<double>::infinity());
}

TEST(ExactSum, TiesGoToEvenUnlessAnythingFollows) {
  const double big = std::ldexp(1, 53);
  ExactSum sum;
  sum.add(big);
  sum.add(1);
  EXPECT_EQ(sum.value(), big);
  sum.add(std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(sum.value(), big + 2);
  ExactSum odd;
  odd.add(big + 2);
  odd.add(1);
  EXPECT_EQ(odd.value(), big + 4);
}

TEST(ExactSum, CarriesThroughEveryLimb) {
  ExactSum sum;
  const double smallest = std::numeric_limits<double>::denorm_min();
  sum.add(smallest);
  for (int power = 1; power < 2090; ++power) {
    sum.add(limbs(sum));
    ASSERT_EQ(sum.value(), std::ldexp(smallest, power));
  }
}

TEST(ExactSum, LimbsAreNormalised) {
  Random random(4);
  ExactSum sum;
  for (int i = 0; i < 1000; ++i) sum.add(any_double(random));
  for (const std::int64_t limb : sum.limbs()) {
    EXPECT_GE(limb, 0);
    EXPECT_LT(limb, std::int64_t{1} << 32);
  }
  EXPECT_THROW(sum.add(std::vector<std::int64_t>(3)), ConfigError);
}

// Values of `orders` binary orders, some of them zero.
std::vector<double> spread(Random& random, std::size_t count, int orders) {
  std::vector<double> values(count);
  for (double& value : values) {
    const double mantissa = std::bit_cast<double>((random() & 0x000fffffffffffff) | 0x3ff0000000000000);
    value = random() % 8 == 0 ? 0 : std::ldexp(mantissa, static_cast<int>(random() % static_cast<unsigned>(orders)));
  }
  return values;
}

ExactSum::Extent extent_of(const std::vector<double>& values) {
  ExactSum::Extent extent{std::numeric_limits<double>::infinity(), 0};
  for (const double value : values) {
    if (value > 0) extent.smallest = std::min(extent.smallest, value);
    if (value > extent.largest) extent.largest = value;
  }
  return extent;
}

TEST(ExactSum, ManyValuesAddUpLikeOneByOne) {
  Random random(8);
  for (const int orders : {1, 2, 36, 37, 38, 39, 40, 200})
    for (const std::size_t count : {0, 1, 3, 8, 255, 256, 257, 1304}) {
      const std::vector<double> values = spread(random, count, orders);
      ExactSum together, apart;
      EXPECT_EQ(together.add_finite(values, extent_of(values)), 0);
      for (const double value : values) apart.add(value);
      ASSERT_EQ(limbs(together), limbs(apart)) << count << " values of " << orders << " orders";
    }
}

TEST(ExactSum, LeavesOutWhatIsNotFinite) {
  using Limits = std::numeric_limits<double>;
  for (const double odd : {Limits::infinity(), Limits::quiet_NaN(), -Limits::quiet_NaN()}) {
    std::vector<double> values(304, 0.5);
    values[7] = values[290] = odd;
    ExactSum sum;
    EXPECT_EQ(sum.add_finite(values, extent_of(values)), 2);
    EXPECT_EQ(sum.value(), 151);
    std::vector<double> zeros(16);
    zeros[3] = odd;
    EXPECT_EQ(sum.add_finite(zeros, extent_of(zeros)), 1);
    EXPECT_EQ(sum.value(), 151);
  }
}

// All at the most that a batch is made for: the upper parts add up to 2^53 units, the rests as far as they can.
TEST(ExactSum, FullBatchesStayExact) {
  for (const double rest : {0x1p-45, -0x1p-45, 0x1p-44})
    for (const double least : {0x1p-37, 0x1.fffffffffffffp-37}) {
      std::vector<double> values(256, 2 - 0x1p-52 + rest);
      for (std::size_t i = 0; i < values.size(); i += 3) values[i] = 1 + rest;
      values[17] = least;
      ExactSum together, apart;
      EXPECT_EQ(together.add_finite(values, extent_of(values)), 0);
      for (const double value : values) apart.add(value);
      EXPECT_EQ(limbs(together), limbs(apart));
    }
}

TEST(ExactSum, TakesNegativeValues) {
  Random random(10);
  ExactSum sum;
  std::vector<double> values(1000);
  for (double& value : values) value = any_double(random);
  for (const double value : values) sum.add(-value);
  sum.add(3);
  for (const double value : values) sum.add(value);
  EXPECT_EQ(sum.value(), 3);
}

TEST(ExactSum, ManyValuesAtTheEndsOfTheRange) {
  using Limits = std::numeric_limits<double>;
  for (const double end : {Limits::denorm_min(), Limits::min(), Limits::max(), 0.0}) {
    const std::vector<double> values(256, end);
    ExactSum together, apart;
    together.add_finite(values, extent_of(values));
    for (const double value : values) apart.add(value);
    EXPECT_EQ(limbs(together), limbs(apart)) << end;
  }
}

}  // namespace zero::exact_sum_test
