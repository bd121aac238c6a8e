#include "comm/tree_sum.h"

#include <limits>

#include "comm_reference.h"
#include "zero/error.h"

namespace zero::test::tree_sum_test {

std::vector<Array> random_sources(Dtype dtype, std::int64_t count, int n) {
  std::vector<Array> sources;
  for (int s = 0; s < n; ++s) sources.push_back(random_array(dtype, count, s));
  return sources;
}

std::vector<const void*> pointers(const std::vector<Array>& sources) {
  std::vector<const void*> result;
  for (const Array& source : sources) result.push_back(source.bytes.data());
  return result;
}

template <class Body>
void for_each_case(Body body) {
  for (Dtype dtype : kSummed)
    for (int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33})
      for (std::int64_t count : {0, 1, 7, 512, 1300}) {
        SCOPED_TRACE(testing::Message() << n << " sources of " << count << " " << name(dtype));
        body(random_sources(dtype, count, n));
      }
}

TEST(TreeSum, HasTheBitsOfABinaryCounter) {
  for_each_case([](std::vector<Array> sources) {
    Array sums(accumulation(sources[0].dtype), sources[0].count);
    tree_sum(pointers(sources), sources[0].dtype, sums.bytes.data(), sums.count);
    EXPECT_EQ(sums, reference_sum(sources));
  });
}

TEST(TreeSum, RoundsOnce) {
  for_each_case([](std::vector<Array> sources) {
    Array sums(sources[0].dtype, sources[0].count);
    tree_sum_rounded(pointers(sources), sources[0].dtype, sums.bytes.data(), sums.count);
    EXPECT_EQ(sums, reference_rounded_sum(sources));
  });
}

TEST(TreeSum, MayWriteOverAnySource) {
  for_each_case([](const std::vector<Array>& sources) {
    const Array expected = reference_rounded_sum(sources);
    for (std::size_t s = 0; s < sources.size(); ++s) {
      auto copy = sources;
      tree_sum_rounded(pointers(copy), copy[s].dtype, copy[s].bytes.data(), copy[s].count);
      EXPECT_EQ(copy[s], expected) << "over source " << s;
    }
  });
}

TEST(TreeSum, AddsInTheOrderOfTheDesign) {
  const std::vector<float> values = {1e8f, 1.0f, -1e8f, 3.0f, 1e-3f, 7.0f, 0.5f};
  std::vector<const void*> sources;
  for (const float& value : values) sources.push_back(&value);
  float sum = 0;
  tree_sum(sources, Dtype::f32, &sum, 1);
  const auto& v = values;
  EXPECT_EQ(sum, ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + v[6]));
}

// Every rank brings sums of some leaves, of which the tree is made again: the whole of it, or of a part the largest
// nodes.
TEST(GroupSums, AreThoseOfTheLeaves) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::i64})
    for (const int ranks : {1, 2, 3, 5, 6, 8})
      for (const std::int64_t apiece : {1, 2, 3, 5, 8})
        for (const std::int64_t first : {0, 3}) {
          const std::int64_t all = first + ranks * apiece + first, count = 700;
          const std::vector<Array> leaves = random_sources(dtype, count, static_cast<int>(all));
          const auto sums_of = [&](const std::vector<LeafRange>& nodes) {
            std::vector<Array> sums;
            for (const LeafRange& node : nodes)
              sums.push_back(reference_sum({leaves.begin() + node.begin, leaves.begin() + node.end}));
            return sums;
          };
          const SumParts sum(GroupSum({first, apiece, all}, ranks));
          const std::vector<Array> brought = sums_of(sum.nodes), expected = sums_of(sum.sums);
          Array sums(dtype, static_cast<std::int64_t>(expected.size()) * (count + 9));
          group_sum(sum, pointers(brought), dtype, sums.bytes.data(), count + 9, count);
          for (std::size_t i = 0; i < expected.size(); ++i) {
            Array one(dtype, count);
            std::memcpy(one.bytes.data(), sums.slice(static_cast<std::int64_t>(i) * (count + 9), count).data,
                        one.bytes.size());
            EXPECT_EQ(one, expected[i]) << ranks << " ranks, " << apiece << " apiece, sum " << i;
          }
        }
}

TEST(TreeSum, KeepsNanAndInfinity) {
  for (Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    Array array(dtype, 3);
    const float values[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()};
    for (int i = 0; i < 3; ++i) {
      if (dtype == Dtype::bf16)
        narrow(values[i], array.at<Bf16>(i));
      else
        narrow(values[i], array.at<Fp16>(i));
    }
    Array wide(Dtype::f32, 3);
    tree_sum(pointers({array}), dtype, wide.bytes.data(), 3);
    EXPECT_TRUE(std::isnan(wide.at<float>(0)));
    EXPECT_EQ(wide.at<float>(1), values[1]);
    EXPECT_EQ(wide.at<float>(2), values[2]);
  }
}

TEST(TreeSum, RoundsBf16ToNearestEven) {
  const auto rounded = [](std::uint32_t bits) {
    Bf16 out;
    narrow(std::bit_cast<float>(bits), out);
    return out.bits;
  };
  EXPECT_EQ(rounded(0x3f808000), 0x3f80);  // a tie goes to the even neighbour, down
  EXPECT_EQ(rounded(0x3f818000), 0x3f82);  // or up
  EXPECT_EQ(rounded(0x3f808001), 0x3f81);
  EXPECT_EQ(rounded(0x7f7fffff), 0x7f80);  // overflows to infinity
  EXPECT_EQ(rounded(0x7f800001), 0x7fc0);  // a NaN whose upper bits are those of infinity
}

Fp16 half(int bits) {
  Fp16 value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

TEST(TreeSum, WidensFp16Exactly) {
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const int exponent = bits >> 10, mantissa = bits & 0x3ff;
    const double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(0x400 + mantissa, exponent - 25);
    ASSERT_EQ(widen(half(bits)), value) << bits;
    ASSERT_EQ(widen(half(bits | 0x8000)), -value) << bits;
  }
  EXPECT_TRUE(std::signbit(widen(half(0x8000))));
  EXPECT_EQ(widen(half(0xfc00)), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(widen(half(0x7c01))));
}

// Each value, and around the middle between it and the next: the middle goes to the even one. What would
// be the next after the largest is 2^16, that is infinity.
TEST(TreeSum, RoundsFp16ToNearestEven) {
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const float low = widen(half(bits));
    const float high = bits == 0x7bff ? 65536.0f : widen(half(bits + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(Fp16(low).bits, bits);
    ASSERT_EQ(Fp16(std::nextafter(middle, low)).bits, bits);
    ASSERT_EQ(Fp16(middle).bits, bits + (bits & 1));
    ASSERT_EQ(Fp16(std::nextafter(middle, high)).bits, bits + 1);
    ASSERT_EQ(Fp16(-middle).bits, (bits + (bits & 1)) | 0x8000);
  }
  using Limits = std::numeric_limits<float>;
  EXPECT_EQ(Fp16(Limits::max()).bits, 0x7c00);
  EXPECT_EQ(Fp16(-Limits::infinity()).bits, 0xfc00);
  EXPECT_EQ(Fp16(Limits::denorm_min()).bits, 0);
  EXPECT_EQ(Fp16(Limits::quiet_NaN()).bits, 0x7e00);
  EXPECT_EQ(Fp16(std::bit_cast<float>(0x7f800001)).bits, 0x7e00);
}

TEST(TreeSum, RefusesBytes) {
  const unsigned char byte = 1;
  unsigned char out = 0;
  const std::vector<const void*> sources = {&byte};
  EXPECT_THROW(tree_sum(sources, Dtype::u8, &out, 1), ConfigError);
}

}  // namespace zero::test::tree_sum_test
