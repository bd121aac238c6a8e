// Arrays of any dtype with reproducible contents, and the sum across ranks as design.md words it: a
// binary counter of partial sums.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "base/half.h"
#include "zero/communicator.h"

namespace zero::test {

inline constexpr Dtype kDtypes[] = {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16, Dtype::i64, Dtype::i32, Dtype::u8};
inline constexpr Dtype kSummed[] = {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16, Dtype::i64, Dtype::i32};

struct Array {
  Array(Dtype type, std::int64_t elements)
      : dtype(type), count(elements), bytes(static_cast<std::size_t>(elements * size_of(type))) {}

  View view() { return slice(0, count); }
  View slice(std::int64_t begin, std::int64_t n) { return {bytes.data() + begin * size_of(dtype), n, dtype, -1}; }
  template <class T>
  T& at(std::int64_t i) {
    return reinterpret_cast<T*>(bytes.data())[i];
  }
  bool operator==(const Array&) const = default;

  Dtype dtype;
  std::int64_t count;
  std::vector<unsigned char> bytes;
};

template <class T, class Source>
void fill_with(Array& array, Source source) {
  for (std::int64_t i = 0; i < array.count; ++i) array.at<T>(i) = source();
}

// Values of many magnitudes, so that the order of a sum shows in its last bits.
inline Array random_array(Dtype dtype, std::int64_t count, int seed) {
  std::mt19937_64 engine(static_cast<std::uint64_t>(seed) * 1000003 + static_cast<std::uint64_t>(count));
  Array array(dtype, count);
  const auto real = [&] {
    const double unit = static_cast<double>(engine() >> 11) / (1ull << 53) - 0.5;
    return std::ldexp(unit, static_cast<int>(engine() % 8));
  };
  const auto bf16 = [&] {
    Bf16 value;
    narrow(static_cast<float>(real()), value);
    return value;
  };
  switch (dtype) {
    case Dtype::f32: fill_with<float>(array, [&] { return static_cast<float>(real()); }); break;
    case Dtype::f64: fill_with<double>(array, real); break;
    case Dtype::bf16: fill_with<Bf16>(array, bf16); break;
    case Dtype::f16: fill_with<Fp16>(array, [&] { return static_cast<Fp16>(real()); }); break;
    case Dtype::i64: fill_with<std::uint64_t>(array, [&] { return engine(); }); break;
    case Dtype::i32: fill_with<std::uint32_t>(array, [&] { return static_cast<std::uint32_t>(engine()); }); break;
    case Dtype::u8: fill_with<unsigned char>(array, [&] { return static_cast<unsigned char>(engine()); }); break;
  }
  return array;
}

template <class T>
T counter_sum(const std::vector<T>& values) {
  std::array<std::optional<T>, 16> slots;
  for (T carry : values) {
    std::size_t level = 0;
    for (; slots[level]; ++level) {
      carry = *slots[level] + carry;
      slots[level].reset();
    }
    slots[level] = carry;
  }
  std::optional<T> sum;
  for (const auto& slot : slots)
    if (slot) sum = sum ? *slot + *sum : *slot;
  return *sum;
}

template <class T, class Sum>
Array sum_as(std::vector<Array>& sources) {
  Array sums(accumulation(sources[0].dtype), sources[0].count);
  std::vector<Sum> values(sources.size());
  for (std::int64_t i = 0; i < sums.count; ++i) {
    for (std::size_t s = 0; s < sources.size(); ++s) {
      if constexpr (std::is_same_v<T, Sum>)
        values[s] = sources[s].at<T>(i);
      else
        values[s] = widen(sources[s].at<T>(i));
    }
    sums.at<Sum>(i) = counter_sum(values);
  }
  return sums;
}

// Of type accumulation(dtype).
inline Array reference_sum(std::vector<Array> sources) {
  switch (sources[0].dtype) {
    case Dtype::f32: return sum_as<float, float>(sources);
    case Dtype::f64: return sum_as<double, double>(sources);
    case Dtype::bf16: return sum_as<Bf16, float>(sources);
    case Dtype::f16: return sum_as<Fp16, float>(sources);
    case Dtype::i64: return sum_as<std::uint64_t, std::uint64_t>(sources);
    default: return sum_as<std::uint32_t, std::uint32_t>(sources);
  }
}

// Rounded back to the dtype of the sources.
inline Array reference_rounded_sum(const std::vector<Array>& sources) {
  Array sums = reference_sum(sources);
  const Dtype dtype = sources[0].dtype;
  if (sums.dtype == dtype) return sums;
  Array rounded(dtype, sums.count);
  for (std::int64_t i = 0; i < sums.count; ++i) {
    if (dtype == Dtype::bf16)
      narrow(sums.at<float>(i), rounded.at<Bf16>(i));
    else
      narrow(sums.at<float>(i), rounded.at<Fp16>(i));
  }
  return rounded;
}

}  // namespace zero::test
