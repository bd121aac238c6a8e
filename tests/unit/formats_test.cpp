// Narrow formats: rounding at random, and 8 bits in blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "base/blockwise.h"
#include "base/codec.h"
#include "base/error_blocks.h"
#include "base/half.h"
#include "base/random.h"
#include "device/kernels.h"

namespace zero::test::formats_test {

float at_random(float value, std::uint32_t random) {
  Bf16 out;
  narrow_at_random(value, random, out);
  return widen(out);
}

TEST(RandomBits, AreAFunctionOfKeyAndIndex) {
  const RandomKey key = random_key(derived(7, 1));
  EXPECT_EQ(random_bits(key, 5), random_bits(key, 5));
  std::set<std::uint32_t> seen;
  for (std::uint32_t i = 0; i < 10000; ++i) seen.insert(random_bits(key, i));
  EXPECT_EQ(seen.size(), 10000U);  // a key's stream permutes the indices
  int equal = 0;
  for (std::uint32_t i = 0; i < 10000; ++i)
    equal += random_bits(key, i) >> 16 == random_bits(random_key(derived(7, 2)), i) >> 16;
  EXPECT_LE(equal, 3);
}

TEST(RandomBits, AreEvenlySpread) {
  for (const std::uint64_t seed : {0, 1, 2, 1000000}) {
    const RandomKey key = random_key(derived(seed, 0));
    for (int bit = 0; bit < 32; ++bit) {
      int ones = 0, changes = 0;
      for (std::uint32_t i = 0; i < 40000; ++i) {
        ones += random_bits(key, i) >> bit & 1;
        changes += (random_bits(key, i) ^ random_bits(key, i + 1)) >> bit & 1;
      }
      EXPECT_NEAR(ones, 20000, 600) << seed << " bit " << bit;  // six standard deviations
      EXPECT_NEAR(changes, 20000, 600) << seed << " bit " << bit;
    }
  }
}

TEST(StochasticRounding, KeepsWhatBf16Holds) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = widen(Bf16{static_cast<std::uint16_t>(bits)});
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(at_random(value, 0xffff)));
    } else {
      for (const std::uint32_t random : {0U, 0x7fffU, 0xffffU}) EXPECT_EQ(at_random(value, random), value);
    }
  }
}

TEST(StochasticRounding, GoesUpAsOftenAsTheRestIsLarge) {
  const float low = 1.5F, step = 0x1p-7F;
  for (const float part : {0.25F, 0.5F, 0.9F})
    for (const float sign : {1.F, -1.F}) {
      int away = 0;
      for (std::uint32_t random = 0; random < 0x10000; ++random) {
        const float rounded = at_random(sign * (low + part * step), random);
        ASSERT_TRUE(rounded == sign * low || rounded == sign * (low + step));
        away += rounded != sign * low;
      }
      EXPECT_NEAR(away / 65536.0, part, 1e-4);
    }
}

TEST(StochasticRounding, StaysFinite) {
  const float largest = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(at_random(largest, 0xffff), widen(Bf16{0x7f7f}));
  EXPECT_EQ(at_random(-largest, 0xffff), widen(Bf16{0xff7f}));
  EXPECT_EQ(at_random(infinity, 0xffff), infinity);
  EXPECT_EQ(at_random(-infinity, 0), -infinity);
}

std::uint8_t nearest(float value, Signs signs) {
  const auto& map = dynamic_map(signs);
  std::size_t best = 0;
  for (std::size_t code = 0; code < map.size(); ++code)
    if (std::abs(map[code] - value) < std::abs(map[best] - value)) best = code;
  const bool too_small = signs == Signs::positive && value > 0 && best == 0;
  return static_cast<std::uint8_t>(too_small ? 1 : best);
}

TEST(Blockwise, MapsAreAsPublished) {
  const auto &both = dynamic_map(Signs::both), &positive = dynamic_map(Signs::positive);
  EXPECT_TRUE(std::ranges::is_sorted(both));
  EXPECT_TRUE(std::ranges::is_sorted(positive));
  EXPECT_EQ(both[127], 0);
  EXPECT_EQ(both[255], 1);
  EXPECT_FLOAT_EQ(both[254], 0.99296875F);
  EXPECT_FLOAT_EQ(both[0], -0.99296875F);
  EXPECT_FLOAT_EQ(both[128], 5.5e-7F);
  EXPECT_EQ(positive[0], 0);
  EXPECT_EQ(positive[255], 1);
  EXPECT_FLOAT_EQ(positive[1], 3.25e-7F);
  EXPECT_FLOAT_EQ(positive[2], 7.75e-7F);
}

TEST(Blockwise, RoundsToTheNearest) {
  std::mt19937 engine(1);
  for (const Signs signs : {Signs::both, Signs::positive})
    for (int trial = 0; trial < 50; ++trial) {
      std::array<float, kStateBlock> values;
      for (float& value : values) {
        value = std::ldexp(std::generate_canonical<float, 24>(engine), -static_cast<int>(engine() % 24));
        if (signs == Signs::both && engine() % 2) value = -value;
      }
      values[0] = 1;  // so that the scale is 1 and the values are the quotients
      std::array<std::uint8_t, kStateBlock> codes;
      EXPECT_EQ(quantize(values.data(), signs, codes.data(), kStateBlock), 1);
      for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(std::abs(dynamic_map(signs)[codes[i]] - values[i]),
                  std::abs(dynamic_map(signs)[nearest(values[i], signs)] - values[i]))
            << values[i];
    }
}

TEST(Blockwise, EveryCodeSurvives) {
  for (const Signs signs : {Signs::both, Signs::positive}) {
    std::array<float, kStateBlock> values;
    std::array<std::uint8_t, kStateBlock> codes, again;
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
    dequantize(codes.data(), 0.5F, signs, values.data(), kStateBlock);
    EXPECT_EQ(quantize(values.data(), signs, again.data(), kStateBlock), 0.5F);
    EXPECT_EQ(codes, again);
  }
}

// Else a first moment that is still there would be divided by epsilon alone.
TEST(Blockwise, WhatIsUnderARootVanishesOnlyWhereItIsZero) {
  std::array<float, 3> values{1, 1e-12F, 0};
  std::array<std::uint8_t, 3> codes;
  quantize(values.data(), Signs::positive, codes.data(), 3);
  EXPECT_EQ(codes, (std::array<std::uint8_t, 3>{255, 1, 0}));
}

TEST(Blockwise, AnInfinityLeavesTheBlockFinite) {
  std::array<float, 3> values{std::numeric_limits<float>::infinity(), 1, 0};
  std::array<std::uint8_t, 3> codes;
  const float scale = quantize(values.data(), Signs::positive, codes.data(), 3);
  dequantize(codes.data(), scale, Signs::positive, values.data(), 3);
  for (const float value : values) EXPECT_TRUE(std::isfinite(value)) << value;
  EXPECT_EQ(values[2], 0);
}

TEST(Blockwise, ZerosStayZeros) {
  std::array<float, 40> values{};
  std::array<std::uint8_t, 40> codes;
  const float scale = quantize(values.data(), Signs::both, codes.data(), 40);
  EXPECT_EQ(scale, 0);
  values.fill(5);
  dequantize(codes.data(), scale, Signs::both, values.data(), 40);
  for (const float value : values) EXPECT_EQ(value, 0);
}

// Each value is within half a step of its block: 2^-4 of a normal number's size, or half the smallest step.
TEST(Float8Blocks, AreNearTheirValues) {
  std::mt19937 engine(2);
  std::array<float, 100> values, again;
  for (float& value : values)
    value = std::ldexp(std::generate_canonical<float, 24>(engine) - 0.5F, static_cast<int>(engine() % 60) - 40);
  std::vector<std::uint8_t> codes(bytes_of_codes(Wire::fp8, 100));
  ASSERT_EQ(codes.size(), 104);
  run_on_host(Encode{values.data(), Dtype::f32, codes.data(), 100, Wire::fp8});
  run_on_host(Decode{codes.data(), again.data(), Dtype::f32, 100, Wire::fp8});
  for (std::size_t block = 0; block < 100; block += Float8Blocks::kBlock) {
    float largest = 0;
    const std::size_t end = std::min<std::size_t>(block + Float8Blocks::kBlock, 100);
    for (std::size_t i = block; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
    for (std::size_t i = block; i < end; ++i)
      EXPECT_LE(std::abs(again[i] - values[i]), std::max(std::abs(values[i]) / 16, largest * 0x1p-17F)) << values[i];
  }
}

TEST(Float8Blocks, OfWhatTheyGiveAreExact) {
  std::array<float, 64> values, once, twice;
  for (std::size_t i = 0; i < 64; ++i) values[i] = std::ldexp(1 + static_cast<float>(i) / 64, static_cast<int>(i % 9));
  std::vector<std::uint8_t> codes(bytes_of_codes(Wire::fp8, 64));
  run_on_host(Encode{values.data(), Dtype::f32, codes.data(), 64, Wire::fp8});
  run_on_host(Decode{codes.data(), once.data(), Dtype::f32, 64, Wire::fp8});
  run_on_host(Encode{once.data(), Dtype::f32, codes.data(), 64, Wire::fp8});
  run_on_host(Decode{codes.data(), twice.data(), Dtype::f32, 64, Wire::fp8});
  EXPECT_EQ(once, twice);
}

TEST(Float8Blocks, ThatAreNotFiniteAreNoNumbers) {
  std::array<float, 40> values{};
  values[3] = std::numeric_limits<float>::infinity();
  std::vector<std::uint8_t> codes(bytes_of_codes(Wire::fp8, 40));
  run_on_host(Encode{values.data(), Dtype::f32, codes.data(), 40, Wire::fp8});
  run_on_host(Decode{codes.data(), values.data(), Dtype::f32, 40, Wire::fp8});
  for (std::size_t i = 0; i < 32; ++i) EXPECT_TRUE(std::isnan(values[i]));
  for (std::size_t i = 32; i < 40; ++i) EXPECT_EQ(values[i], 0);
}

std::vector<float> through(Wire wire, const std::vector<float>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(bytes_of_codes(wire, count)));
  std::vector<float> arrived(values.size());
  run_on_host(Encode{values.data(), Dtype::f32, codes.data(), count, wire});
  run_on_host(Decode{codes.data(), arrived.data(), Dtype::f32, count, wire});
  return arrived;
}

// Of seven blocks, the last of which is short and ends in half a byte.
std::vector<float> normal_values(float size) {
  std::mt19937 engine(4);
  std::vector<float> values(6 * 256 + 77);
  for (float& value : values) {
    float sum = -6;
    for (int i = 0; i < 12; ++i) sum += std::generate_canonical<float, 24>(engine);
    value = sum * size;
  }
  return values;
}

// The largest magnitude is -8 or -128 steps, so that what has its sign is within half a step, and what has the other
// one within a step; what bf16 makes of a step is 2^-9 of it.
TEST(FullRangeBlocks, AreNearTheirValues) {
  for (const auto& [wire, steps] : {std::pair(Wire::int4, 8.0F), {Wire::int8, 128.0F}})
    for (const float size : {1.0F, 1e-30F, 1e30F}) {
      const std::vector<float> values = normal_values(size), arrived = through(wire, values);
      for (std::size_t block = 0; block < values.size(); block += 256) {
        const std::size_t end = std::min(block + 256, values.size());
        const auto less = [](float a, float b) { return std::abs(a) < std::abs(b); };
        const float largest = *std::max_element(values.begin() + static_cast<std::ptrdiff_t>(block),
                                                values.begin() + static_cast<std::ptrdiff_t>(end), less);
        const float step = std::abs(largest) / steps;
        for (std::size_t i = block; i < end; ++i) {
          const bool clipped =
              std::signbit(values[i]) != std::signbit(largest) && std::abs(values[i]) > (steps - 0.5F) * step;
          EXPECT_LE(std::abs(arrived[i] - values[i]), step * ((clipped ? 1 : 0.5F) + steps * 0x1p-8F)) << values[i];
        }
      }
    }
}

TEST(FullRangeBlocks, OfWhatWasDecodedAreTheSame) {
  for (const Wire wire : {Wire::int4, Wire::int8})
    for (const float size : {1.0F, 1e-30F, 1e30F}) {
      const std::vector<float> arrived = through(wire, normal_values(size));
      EXPECT_EQ(through(wire, arrived), arrived);
    }
}

// So that state has them in two bytes, and nothing is lost.
TEST(ErrorBlocks, AreExactInBf16AndTheSameWhereTheyAreEncodedAgain) {
  for (const float size : {1.0F, 1e-36F, 1e30F}) {
    const std::vector<float> values = normal_values(size);
    const auto count = static_cast<std::int64_t>(std::min<std::size_t>(values.size(), ErrorBlocks::kBlock));
    std::array<std::uint8_t, ErrorBlocks::kBlock> codes{}, again{};
    std::uint8_t head = 0, same = 0;
    ErrorBlocks::encode(values.data(), count, codes.data(), &head);
    std::array<float, ErrorBlocks::kBlock> wide{};
    std::array<Bf16, ErrorBlocks::kBlock> narrow{};
    ErrorBlocks::decode(codes.data(), &head, count, 0, count, wide.data());
    ErrorBlocks::decode(codes.data(), &head, count, 0, count, narrow.data());
    for (std::size_t i = 0; i < wide.size(); ++i) EXPECT_EQ(widen(narrow[i]), wide[i]);
    ErrorBlocks::encode(narrow.data(), count, again.data(), &same);
    EXPECT_EQ(codes, again);
    EXPECT_EQ(head, same);
  }
}

TEST(Bf16Codes, AreValuesRoundedToTheNearest) {
  std::vector<float> values = normal_values(1e3F);
  values[7] = std::numeric_limits<float>::infinity();
  const std::vector<float> arrived = through(Wire::bf16_codes, values);
  EXPECT_EQ(bytes_of_codes(Wire::bf16_codes, 77), 2 * 77);
  for (std::size_t i = 0; i < values.size(); ++i) {
    Bf16 rounded;
    narrow(values[i], rounded);
    EXPECT_EQ(arrived[i], widen(rounded));
  }
  values[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(through(Wire::bf16_codes, values)[7]));
}

// The mean square of the error over the values'.
double share_lost(Wire wire, const std::vector<float>& values) {
  const std::vector<float> arrived = through(wire, values);
  double lost = 0, all = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    lost += std::pow(arrived[i] - values[i], 2);
    all += std::pow(values[i], 2);
  }
  return lost / all;
}

// Of normal numbers: blocks of 128 whose positive extremes are clipped lose .0111 (symmetric, full range), those of
// 2048 .0172.
TEST(Codecs, HaveTheErrorOfTheirBits) {
  std::mt19937 engine(4);
  std::normal_distribution<float> normal;
  std::vector<float> values(1000 * 256);
  for (float& value : values) value = normal(engine);
  for (const Wire wire : {Wire::int4, Wire::int4_hadamard}) EXPECT_NEAR(share_lost(wire, values), .0123, .0003);
  EXPECT_LT(share_lost(Wire::int8, values), .0123 / 100);
  EXPECT_LT(share_lost(Wire::fp8, values), .0123 / 10);
}

// One in 100 is 50 times as large as the others, of which int4 then keeps nothing.
TEST(Codecs, ThatMixKeepWhatStandsBesideLargeValues) {
  std::vector<float> values = normal_values(1);
  for (std::size_t i = 0; i < values.size(); i += 100) values[i] *= 50;
  const auto of_the_small = [&](Wire wire) {
    const std::vector<float> arrived = through(wire, values);
    double lost = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (i % 100 != 0) lost += std::pow(arrived[i] - values[i], 2);
    return lost / static_cast<double>(values.size());
  };
  EXPECT_GT(of_the_small(Wire::int4), .9);
  EXPECT_LT(share_lost(Wire::int4_hadamard, values), .03);
}

// What is rounded off is part of the next difference: after as many as there are bits, nothing is left.
TEST(Differences, BringWhatTheyAreAddedToToTheValues) {
  std::vector<float> values = normal_values(1), there(values.size(), 0);
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(bytes_of_codes(Wire::int4_differences, count)));
  EXPECT_EQ(bytes_of_codes(Wire::int4_differences, count), bytes_of_codes(Wire::int4, count));
  float before = 1e30F;
  for (int round = 0; round < 6; ++round) {
    run_on_host(Encode{values.data(), Dtype::f32, codes.data(), count, Wire::int4_differences, there.data()});
    run_on_host(Decode{codes.data(), there.data(), Dtype::f32, count, Wire::int4_differences, /*adds=*/true});
    float left = 0;
    for (std::size_t i = 0; i < values.size(); ++i) left = std::max(left, std::abs(values[i] - there[i]));
    EXPECT_LT(left, before / 7) << "half a step of sixteen, a whole one where it is clipped";
    before = left;
  }
}

TEST(Differences, OfEqualInfinitiesAreNone) {
  std::vector<float> values(100, 1), there(100, 0);
  values[7] = there[7] = -std::numeric_limits<float>::infinity();
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(bytes_of_codes(Wire::int4_differences, 100)));
  run_on_host(Encode{values.data(), Dtype::f32, codes.data(), 100, Wire::int4_differences, there.data()});
  run_on_host(Decode{codes.data(), there.data(), Dtype::f32, 100, Wire::int4_differences, /*adds=*/true});
  EXPECT_EQ(there[7], values[7]);
  for (std::size_t i = 8; i < 100; ++i) EXPECT_NEAR(there[i], values[i], .2) << i;
}

// A sender with memory of what it rounded off.
class FedBack {
 public:
  FedBack(Wire wire, std::size_t count)
      : wire_(wire), errors_(static_cast<std::size_t>(bytes_of_codes<ErrorBlocks>(static_cast<std::int64_t>(count)))) {}

  std::vector<float> through(const std::vector<float>& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(bytes_of_codes(wire_, count)));
    std::vector<float> arrived(values.size());
    run_on_host(Encode{values.data(), Dtype::f32, codes.data(), count, wire_, /*base=*/nullptr, errors_.data()});
    run_on_host(Decode{codes.data(), arrived.data(), Dtype::f32, count, wire_});
    return arrived;
  }

 private:
  Wire wire_;
  std::vector<std::uint8_t> errors_;
};

constexpr std::array kCodecs{Wire::bf16_codes, Wire::fp8, Wire::int8, Wire::int4, Wire::int4_hadamard};

// The sum of what arrives is off by what is kept, however many there were; without, it is off by more with each.
TEST(ErrorFeedback, IsLateAndLosesNothing) {
  for (const Wire wire : kCodecs) {
    const std::vector<float> values = normal_values(1), once = through(wire, values);
    FedBack sender(wire, values.size());
    EXPECT_EQ(sender.through(values), once) << "errors begin as zeros";
    std::vector<double> sums(once.begin(), once.end());
    constexpr int kRounds = 40;
    for (int round = 1; round < kRounds; ++round) {
      const std::vector<float> arrived = sender.through(values);
      for (std::size_t i = 0; i < values.size(); ++i) sums[i] += arrived[i];
    }
    double with = 0, without = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      with = std::max(with, std::abs(sums[i] / kRounds - values[i]));
      without = std::max(without, static_cast<double>(std::abs(once[i] - values[i])));
    }
    EXPECT_LT(with, without / 8) << name(wire);
  }
}

TEST(ErrorFeedback, HasNoErrorOfWhatIsNotFinite) {
  for (const Wire wire : kCodecs)
    for (const float broken : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> values(600, 0);
      FedBack sender(wire, values.size());
      values[300] = broken;
      EXPECT_FALSE(std::isfinite(sender.through(values)[300])) << name(wire);
      values = normal_values(1);
      values.resize(600);
      EXPECT_EQ(sender.through(values), through(wire, values)) << name(wire);
    }
}

TEST(Int4HadamardBlocks, MixWhat32Divides) {
  for (const std::size_t count : {1U, 31U, 32U, 63U, 64U, 255U, 256U, 300U}) {
    std::vector<float> values = normal_values(1);
    values.resize(count);
    const std::vector<float> arrived = through(Wire::int4_hadamard, values);
    for (std::size_t i = 0; i < count; ++i) EXPECT_NEAR(arrived[i], values[i], .8) << i << " of " << count;
    EXPECT_EQ(through(Wire::int4_hadamard, std::vector<float>(count, 0)), std::vector<float>(count, 0));
    const std::vector<float> constant = through(Wire::int4_hadamard, std::vector<float>(count, 3));
    for (std::size_t i = 0; i < count / 32 * 32; ++i) EXPECT_NEAR(constant[i], 3, .01) << "one of the matrix's rows";
  }
}

TEST(Int4HadamardBlocks, OfFiniteValuesAreFinite) {
  for (const float each : through(Wire::int4_hadamard, std::vector<float>(256, 3e38F)))
    EXPECT_TRUE(std::isfinite(each));
  for (const float each : through(Wire::int4_hadamard, normal_values(1e37F))) EXPECT_TRUE(std::isfinite(each));
}

TEST(FullRangeBlocks, ThatAreNotFiniteAreNoNumbers) {
  for (const Wire wire : {Wire::int8, Wire::int4, Wire::int4_hadamard})
    for (const float broken : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> values(300, 1);
      values[255] = broken;
      const std::vector<float> arrived = through(wire, values);
      for (std::size_t i = 0; i < 300; ++i) EXPECT_EQ(std::isnan(arrived[i]), i < 256) << i;
    }
}

TEST(FullRangeBlocks, OfZerosAreZeros) {
  for (const float least : {0.0F, -0.0F, 1e-44F})
    for (const Wire wire : {Wire::int8, Wire::int4})
      for (const float value : through(wire, std::vector<float>(3, least))) EXPECT_EQ(value, 0);
}

TEST(Int4Blocks, TakeHalfAByteAValueAndTwoABlock) {
  EXPECT_EQ(bytes_of_codes(Wire::int4, 256), 130);
  EXPECT_EQ(bytes_of_codes(Wire::int4, 257), 2 * 2 + 129);
  EXPECT_EQ(bytes_of_codes(Wire::int8, 256), 2 + 256);
}

}  // namespace zero::test::formats_test
