// The 8-bit formats against LibTorch's, which does not saturate: values are clamped before they go there.
#include "base/float8.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <bit>
#include <cmath>
#include <cstdlib>

namespace zero::test::float8_test {

template <class Ours, class Theirs>
struct Pair {
  using Mine = Ours;
  using Reference = Theirs;
};
using Formats = testing::Types<Pair<E4m3, c10::Float8_e4m3fn>, Pair<E5m2, c10::Float8_e5m2>>;

template <class Formats>
class Float8 : public testing::Test {
 protected:
  using Mine = typename Formats::Mine;
  using Reference = typename Formats::Reference;

  static std::uint8_t mine(float value) {
    Mine out;
    narrow(value, out);
    return out.bits;
  }
  static std::uint8_t reference(float value) { return Reference(std::clamp(value, -Mine::kLargest, Mine::kLargest)).x; }
  static std::uint8_t at_random(float value, std::uint32_t random) {
    Mine out;
    narrow_at_random(value, random, out);
    return out.bits;
  }
};
TYPED_TEST_SUITE(Float8, Formats);

TYPED_TEST(Float8, WidensEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    const auto theirs = static_cast<float>(typename TestFixture::Reference(bits, TestFixture::Reference::from_bits()));
    const float ours = widen(typename TestFixture::Mine{bits});
    EXPECT_TRUE(std::isnan(theirs) ? std::isnan(ours)
                                   : std::bit_cast<std::uint32_t>(ours) == std::bit_cast<std::uint32_t>(theirs))
        << code;
  }
}

TYPED_TEST(Float8, RoundsEveryBf16) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto value = std::bit_cast<float>(bits << 16);
    ASSERT_EQ(this->mine(value), this->reference(value)) << value;
  }
}

// All of them with ZERO_TEST_LONG=1, else one in 251.
TYPED_TEST(Float8, RoundsFp32) {
  const std::uint64_t stride = std::getenv("ZERO_TEST_LONG") == nullptr ? 251 : 1;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += stride) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    ASSERT_EQ(this->mine(value), this->reference(value)) << value;
  }
}

TYPED_TEST(Float8, RoundsAtRandomToOneOfTheNeighbours) {
  constexpr std::uint32_t kRandom = 1 << 21;
  for (int code = 0; code < 0x7b; ++code) {
    const float low = widen(typename TestFixture::Mine{static_cast<std::uint8_t>(code)});
    const float high = widen(typename TestFixture::Mine{static_cast<std::uint8_t>(code + 1)});
    for (const std::uint32_t random : {0U, kRandom / 3, kRandom - 1}) EXPECT_EQ(this->at_random(low, random), code);
    const float value = low + (high - low) * 0.75F;
    int up = 0;
    for (std::uint32_t random = 0; random < kRandom; random += 1024) {
      const std::uint8_t rounded = this->at_random(-value, random);
      ASSERT_TRUE(rounded == (code | 0x80) || rounded == ((code + 1) | 0x80)) << code;
      up += rounded != (code | 0x80);
    }
    EXPECT_NEAR(up * 1024.0 / kRandom, 0.75, 0.01) << code;
  }
}

TYPED_TEST(Float8, SaturatesAndKeepsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {infinity, 1e30F, TestFixture::Mine::kLargest * 1.5F}) {
    EXPECT_EQ(widen(typename TestFixture::Mine{this->mine(value)}), TestFixture::Mine::kLargest);
    EXPECT_EQ(widen(typename TestFixture::Mine{this->at_random(-value, 0x1fffff)}), -TestFixture::Mine::kLargest);
  }
  EXPECT_TRUE(std::isnan(widen(typename TestFixture::Mine{this->at_random(std::nanf(""), 5)})));
}

}  // namespace zero::test::float8_test
