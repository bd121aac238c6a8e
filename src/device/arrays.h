// Where weights and moments are read from and written to, element by element, and how parameters that a program has
// written go on to what is beside them. No torch.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/float8_blocks.h"
#include "base/half.h"
#include "base/random.h"
#include "base/targets.h"

namespace zero::arrays {

template <class T>
struct Values {
  T* at;
  ZERO_BOTH std::remove_const_t<T> load(std::int64_t i) const { return at[i]; }
  ZERO_BOTH void store(T value, std::int64_t i) const { at[i] = value; }
  ZERO_BOTH Values from(std::int64_t i) const { return {at + i}; }
};

// One value, wherever it belongs.
template <class T>
struct One {
  T* at;
  ZERO_BOTH T load(std::int64_t) const { return *at; }
  ZERO_BOTH void store(T value, std::int64_t) const { *at = value; }
};

// None between equal ones, infinities too.
template <class T>
ZERO_BOTH float difference_of(T value, T from) {
  const float a = widen(value), b = widen(from);
  return a == b ? 0 : a - b;
}

// What is there with what it differs by; what is no number has the same bits, whichever of them it was.
template <class T>
ZERO_BOTH void add_difference(float difference, T& there) {
  const float sum = widen(there) + difference;
  float8::put(sum == sum ? sum : std::numeric_limits<float>::quiet_NaN(), there);
}

template <class Narrow>
struct Widened {
  const Narrow* at;
  ZERO_BOTH float load(std::int64_t i) const { return widen(at[i]); }
};

// The parameters are a copy.
template <class Out>
struct MainWeights {
  float* main;
  Out* copy;
  ZERO_BOTH float load(std::int64_t i) const { return main[i]; }
  ZERO_BOTH void store(float value, std::int64_t i) const {
    main[i] = value;
    narrow(value, copy[i]);
  }
  ZERO_BOTH MainWeights from(std::int64_t i) const { return {main + i, copy + i}; }
};

struct Rounded {
  Bf16* at;
  ZERO_BOTH float load(std::int64_t i) const { return widen(at[i]); }
  ZERO_BOTH void store(float value, std::int64_t i) const { narrow(value, at[i]); }
  ZERO_BOTH Rounded from(std::int64_t i) const { return {at + i}; }
};

struct RoundedAtRandom {
  Bf16* at;
  RandomKey key;
  std::uint32_t first;
  ZERO_BOTH float load(std::int64_t i) const { return widen(at[i]); }
  ZERO_BOTH void store(float value, std::int64_t i) const {
    narrow_at_random(value, upper_random_bits(key, first + static_cast<std::uint32_t>(i)), at[i]);
  }
  ZERO_BOTH RoundedAtRandom from(std::int64_t i) const { return {at + i, key, first + static_cast<std::uint32_t>(i)}; }
};

// What is left is cut, not rounded: to the nearest it could reach half a step, and the sum round to a neighbour.
struct Compensated {
  Bf16* at;
  Bf16* compensation;
  ZERO_BOTH float load(std::int64_t i) const { return widen(at[i]) + widen(compensation[i]); }
  ZERO_BOTH void store(float value, std::int64_t i) const {
    Bf16 rounded, left;
    narrow(value, rounded);
    cut(value - widen(rounded), left);
    at[i] = rounded;
    // Not a choice, which the compiler would merge with that of narrow() into branches.
    const std::uint32_t finite = (rounded.bits & 0x7f80) != 0x7f80;
    compensation[i].bits = static_cast<std::uint16_t>(left.bits & (0 - finite));
  }
  ZERO_BOTH Compensated from(std::int64_t i) const { return {at + i, compensation + i}; }
};

template <class T>
struct Zeros {
  ZERO_BOTH T load(std::int64_t) const { return 0; }
  ZERO_BOTH Zeros from(std::int64_t) const { return {}; }
};

// Read in one place, written to another.
template <class In, class Out>
struct Aside {
  In in;
  Out out;
  ZERO_BOTH Aside from(std::int64_t i) const { return {in.from(i), out.from(i)}; }
  ZERO_BOTH auto load(std::int64_t i) const { return in.load(i); }
  template <class T>
  ZERO_BOTH void store(T value, std::int64_t i) const {
    out.store(value, i);
  }
};

ZERO_BOTH inline void start_compensation(float value, Bf16& compensation) {
  Bf16 rounded;
  narrow(value, rounded);
  cut(value - widen(rounded), compensation);
}
ZERO_BOTH inline void reset_compensation(Bf16 written, Bf16& compensation) {
  Bf16 rounded;
  narrow(widen(written) + widen(compensation), rounded);
  if (rounded.bits != written.bits) compensation = {};
}
template <class Narrow>
ZERO_BOTH inline void adopt_written(Narrow written, float& main) {
  Narrow rounded;
  narrow(main, rounded);
  if (widen(rounded) != widen(written)) main = widen(written);
}

}  // namespace zero::arrays
