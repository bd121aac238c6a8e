#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/exact_sum.h"
#include "base/half.h"

namespace zero::sum_of_squares_test {

using Random = std::mt19937_64;

std::vector<std::int64_t> limbs(ExactSum sum) {
  const auto view = sum.limbs();
  return {view.begin(), view.end()};
}

template <class T>
std::vector<T> gaussians(Random& random, std::size_t count) {
  std::normal_distribution<T> normal;
  std::uniform_real_distribution<T> exponent(-20, 10);
  std::vector<T> values(count);
  for (T& value : values) value = normal(random) * std::exp2(exponent(random));
  return values;
}

template <class T>
class SumOfSquares : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(SumOfSquares, Types);

TYPED_TEST(SumOfSquares, HasTheSameBitsHoweverTheArrayIsCut) {
  Random random(5);
  const std::vector<TypeParam> values = gaussians<TypeParam>(random, 10'007);
  const std::span<const TypeParam> whole(values);
  ExactSum expected;
  std::int64_t nonfinite = 0;
  sum_of_squares(whole, expected, nonfinite);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::span<const TypeParam>> parts;
    for (std::size_t begin = 0; begin < whole.size();) {
      const std::size_t count = std::min<std::size_t>(kSquareBlock * (1 + random() % 40), whole.size() - begin);
      parts.push_back(whole.subspan(begin, count));
      begin += count;
    }
    std::ranges::shuffle(parts, random);
    std::array<ExactSum, 4> ranks;
    for (const auto& part : parts) sum_of_squares(part, ranks[random() % 4], nonfinite);
    ExactSum sum;
    for (ExactSum& rank : ranks) sum.add(rank.limbs());
    ASSERT_EQ(limbs(sum), limbs(expected));
  }
  EXPECT_EQ(nonfinite, 0);
}

TYPED_TEST(SumOfSquares, IsTheSumOfSquares) {
  Random random(6);
  for (const std::size_t count : {0, 1, 15, 16, 17, 1000}) {
    const std::vector<TypeParam> values = gaussians<TypeParam>(random, count);
    ExactSum sum;
    std::int64_t nonfinite = 0;
    sum_of_squares(std::span<const TypeParam>(values), sum, nonfinite);
    long double reference = 0;
    for (const TypeParam value : values) reference += static_cast<long double>(value) * value;
    ASSERT_NEAR(sum.value(), static_cast<double>(reference), 1e-14 * static_cast<double>(reference));
  }
}

TYPED_TEST(SumOfSquares, AddsABlockByHalves) {
  Random random(9);
  for (int round = 0; round < 100; ++round) {
    const std::vector<TypeParam> values = gaussians<TypeParam>(random, kSquareBlock);
    std::array<double, kSquareBlock> lanes;
    std::ranges::transform(values, lanes.begin(), [](double value) { return value * value; });
    for (std::size_t half = kSquareBlock / 2; half > 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    ExactSum sum;
    std::int64_t nonfinite = 0;
    sum_of_squares(std::span<const TypeParam>(values), sum, nonfinite);
    ASSERT_EQ(sum.value(), lanes[0]);
  }
}

TYPED_TEST(SumOfSquares, TheTailCountsAsFilledUpWithZeros) {
  Random random(7);
  std::vector<TypeParam> values = gaussians<TypeParam>(random, 37);
  ExactSum tail, filled;
  std::int64_t nonfinite = 0;
  sum_of_squares(std::span<const TypeParam>(values), tail, nonfinite);
  values.resize(48);
  sum_of_squares(std::span<const TypeParam>(values), filled, nonfinite);
  EXPECT_EQ(limbs(tail), limbs(filled));
}

TYPED_TEST(SumOfSquares, CountsBlocksThatAreNotFinite) {
  using Limits = std::numeric_limits<TypeParam>;
  std::vector<TypeParam> values(80, 1);
  values[3] = Limits::infinity();
  values[4] = Limits::quiet_NaN();
  values[79] = -Limits::infinity();
  ExactSum sum;
  std::int64_t nonfinite = 0;
  sum_of_squares(std::span<const TypeParam>(values), sum, nonfinite);
  EXPECT_EQ(nonfinite, 2);
  EXPECT_EQ(sum.value(), 48);
}

enum class Values { alike, of_many_orders, subnormal, huge, odd, any_bits, mostly_zero };
constexpr Values kValues[] = {Values::alike, Values::of_many_orders, Values::subnormal,  Values::huge,
                              Values::odd,   Values::any_bits,       Values::mostly_zero};

template <class T>
T draw(Random& random, Values kind) {
  using Limits = std::numeric_limits<T>;
  const T value = std::normal_distribution<T>()(random);
  const std::uint64_t bits = random();
  switch (kind) {
    case Values::alike: return value;
    case Values::of_many_orders: return std::ldexp(value, static_cast<int>(bits % 60) - 40);
    case Values::subnormal: return value * 4 * Limits::denorm_min();
    case Values::huge: return value * Limits::max() / 64;
    case Values::odd: return bits % 97 == 0 ? Limits::infinity() : bits % 101 == 0 ? Limits::quiet_NaN() : value;
    case Values::any_bits:
      if constexpr (sizeof(T) == 4) return std::bit_cast<T>(static_cast<std::uint32_t>(bits));
      if constexpr (sizeof(T) == 8) return std::bit_cast<T>(bits);
    case Values::mostly_zero: break;
  }
  return bits % 50 == 0 ? value : 0;
}

// Sanitized programs run what the least processor does.
template <class T>
void expect_as_block_by_block(const std::vector<T>& values, Dtype dtype) {
  ExactSum sum, expected;
  std::int64_t nonfinite = 0, odd = 0;
  sum_of_squares(values.data(), dtype, static_cast<std::int64_t>(values.size()), sum, nonfinite);
  for (std::size_t begin = 0; begin < values.size(); begin += kSquareBlock) {
    std::array<double, kSquareBlock> lanes{};
    for (std::size_t i = begin; i < std::min(values.size(), begin + kSquareBlock); ++i) {
      const double wide = widen(values[i]);
      lanes[i - begin] = wide * wide;
    }
    for (std::size_t half = kSquareBlock / 2; half > 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    if (std::isfinite(lanes[0])) expected.add(lanes[0]);
    odd += !std::isfinite(lanes[0]);
  }
  EXPECT_EQ(limbs(sum), limbs(expected)) << values.size() << " " << name(dtype);
  EXPECT_EQ(nonfinite, odd);
}

TEST(SumOfSquares, HasTheBitsOfBlocksAddedOneByOne) {
  Random random(11);
  for (const Values kind : kValues)
    for (const std::size_t count : {1, 17, 64, 80, 127, 128, 1000, 4096, 70'000}) {
      SCOPED_TRACE(testing::Message() << "values of kind " << static_cast<int>(kind));
      std::vector<float> floats(count);
      std::vector<double> doubles(count);
      std::vector<Bf16> bf16(count);
      std::vector<Fp16> fp16(count);
      for (std::size_t i = 0; i < count; ++i) {
        floats[i] = draw<float>(random, kind);
        doubles[i] = draw<double>(random, kind);
        narrow(floats[i], bf16[i]);
        narrow(floats[i], fp16[i]);
      }
      expect_as_block_by_block(floats, Dtype::f32);
      expect_as_block_by_block(doubles, Dtype::f64);
      expect_as_block_by_block(bf16, Dtype::bf16);
      expect_as_block_by_block(fp16, Dtype::f16);
    }
}

TEST(SumOfSquaresRange, LargeFloatsDoNotOverflowButLargeDoublesDo) {
  const std::vector<float> floats(16, std::numeric_limits<float>::max());
  const std::vector<double> doubles(16, 1e200);
  ExactSum sum;
  std::int64_t nonfinite = 0;
  sum_of_squares(std::span<const float>(floats), sum, nonfinite);
  EXPECT_EQ(nonfinite, 0);
  EXPECT_TRUE(std::isfinite(sum.value()));
  sum_of_squares(std::span<const double>(doubles), sum, nonfinite);
  EXPECT_EQ(nonfinite, 1);
}

TEST(SumOfSquares, Of16BitsIsThatOfTheValuesInFp32) {
  std::mt19937 random(3);
  for (const std::size_t count : {1, 15, 16, 4095, 4096, 4097, 10000}) {
    std::vector<Bf16> narrow(count);
    std::vector<float> wide(count);
    for (std::size_t i = 0; i < count; ++i) {
      narrow[i].bits = static_cast<std::uint16_t>(random() % 0x7f80 | (random() & 0x8000));
      wide[i] = widen(narrow[i]);
    }
    ExactSum sum, expected;
    std::int64_t nonfinite = 0, none = 0;
    sum_of_squares(narrow.data(), Dtype::bf16, static_cast<std::int64_t>(count), sum, nonfinite);
    sum_of_squares(std::span<const float>(wide), expected, none);
    EXPECT_TRUE(std::ranges::equal(sum.limbs(), expected.limbs())) << count;
    EXPECT_EQ(nonfinite, none);
    EXPECT_GT(sum.value(), 0);
  }
}

}  // namespace zero::sum_of_squares_test
