// The figures of docs/numbers.md, made by the code that they are about.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/float8.h"
#include "base/half.h"

namespace zero::test::numbers_test {

const std::string& page() {
  static const std::string text = [] {
    std::ifstream file(ZERO_SOURCE_DIR "/docs/numbers.md");
    std::ostringstream all;
    all << file.rdbuf();
    return all.str();
  }();
  return text;
}

void expect_row(const std::string& row) {
  EXPECT_NE(page().find("\n" + row + "\n"), std::string::npos) << "docs/numbers.md lacks\n" << row;
}

std::string text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.8g", value);
  return buffer;
}

struct Layout {
  const char* name;
  int exponent, mantissa;
};

// All positive finite numbers of a format, ascending.
template <class Format, class Bits>
std::vector<double> positives() {
  std::vector<double> values;
  for (std::uint32_t code = 1; code < 1U << (8 * sizeof(Bits) - 1); ++code) {
    const double value = widen(Format{static_cast<Bits>(code)});
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

std::string row_of(const Layout& layout, double largest, double normal, double smallest, double step) {
  return std::string("| ") + layout.name + " | " + std::to_string(1 + layout.exponent + layout.mantissa) + " | " +
         std::to_string(layout.exponent) + " | " + std::to_string(layout.mantissa) + " | " + text(largest) + " | " +
         text(normal) + " | " + text(smallest) + " | " + text(step) + " |";
}

void expect_extremes(const Layout& layout, const std::vector<double>& values) {
  const auto normal = static_cast<std::size_t>(1) << layout.mantissa;  // subnormal numbers come before
  const auto one = std::ranges::find(values, 1.0);
  expect_row(row_of(layout, values.back(), values[normal - 1], values.front(), one[1] - one[0]));
}

struct Bits16 {
  std::uint16_t bits;
};
float widen(Bits16 value) {
  Fp16 wide;
  wide.bits = value.bits;
  return zero::widen(wide);
}

TEST(Numbers, ExtremesAreOnThePage) {
  using Limits = std::numeric_limits<float>;
  expect_row(row_of({"FP32", 8, 23}, Limits::max(), Limits::min(), Limits::denorm_min(), Limits::epsilon()));
  expect_extremes({"BF16", 8, 7}, positives<Bf16, std::uint16_t>());
  expect_extremes({"FP16", 5, 10}, positives<Bits16, std::uint16_t>());
  expect_extremes({"FP8 E5M2", 5, 2}, positives<E5m2, std::uint8_t>());
  expect_extremes({"FP8 E4M3", 4, 3}, positives<E4m3, std::uint8_t>());
}

// What becomes of 100,000 normally distributed gradients of the deviation given, in percent.
struct Fate {
  double zero = 0, subnormal = 0, cut_off = 0, error = 0;
};

struct Normal {
  double smallest, largest;
};

template <class Format>
Fate fate_of(double deviation, double scale, Normal range) {
  std::mt19937 engine(1);
  std::normal_distribution<double> normal(0, deviation);
  Fate fate;
  constexpr int kCount = 100000;
  double squares = 0, errors = 0;
  for (int i = 0; i < kCount; ++i) {
    const auto value = static_cast<float>(normal(engine));
    Format narrowed;
    narrow(value * static_cast<float>(scale), narrowed);
    const double stored = zero::widen(narrowed), back = stored / scale;
    fate.zero += stored == 0;
    fate.subnormal += stored != 0 && std::abs(stored) < range.smallest;
    fate.cut_off += std::abs(value * scale) > range.largest;
    squares += double{value} * value;
    errors += (back - value) * (back - value);
  }
  for (double* part : {&fate.zero, &fate.subnormal, &fate.cut_off}) *part *= 100.0 / kCount;
  fate.error = 100 * std::sqrt(errors / squares);
  return fate;
}

template <class Format>
void expect_fate(const char* name, double deviation, double scale, Normal range) {
  const Fate fate = fate_of<Format>(deviation, scale, range);
  char row[160];
  std::snprintf(row, sizeof row, "| %.0e | %s | %.0f | %.1f | %.1f | %.1f | %.3f |", deviation, name, scale, fate.zero,
                fate.subnormal, fate.cut_off, fate.error);
  expect_row(row);
}

// A power of two that brings 4.5 deviations near the largest number.
double scale_for(double deviation, double largest) {
  return std::exp2(std::floor(std::log2(largest / (4.5 * deviation))));
}

TEST(Numbers, WhatScalingDoesIsOnThePage) {
  const Normal bf16{0x1p-126, 3.38e38}, fp16{0x1p-14, 65504}, e5m2{0x1p-14, 57344}, e4m3{0x1p-6, 448};
  for (const double deviation : {1e-8, 1e-6, 1e-3}) {
    expect_fate<Bf16>("BF16", deviation, 1, bf16);
    expect_fate<Fp16>("FP16", deviation, 1, fp16);
    expect_fate<Fp16>("FP16", deviation, 65536, fp16);
    expect_fate<E5m2>("FP8 E5M2", deviation, 1, e5m2);
    expect_fate<E5m2>("FP8 E5M2", deviation, scale_for(deviation, e5m2.largest), e5m2);
    expect_fate<E4m3>("FP8 E4M3", deviation, scale_for(deviation, e4m3.largest), e4m3);
  }
}

}  // namespace zero::test::numbers_test
