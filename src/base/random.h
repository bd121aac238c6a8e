// Random bits by counter: a function of a key and an index alone, so that whoever computes an element, on
// whatever rank and in whatever order, draws the same (the idea of Salmon et al., 2011; the mixing is two
// rounds of a 32-bit finaliser, which loops over elements vectorise).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/targets.h"

namespace zero {

struct RandomKey {
  std::uint32_t before = 0;
  std::uint32_t between = 0;
};

// SplitMix64's finaliser: neighbouring inputs give unrelated outputs.
constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

// One key for each `index` of a `seed`.
constexpr std::uint64_t derived(std::uint64_t seed, std::uint64_t index) {
  return mix(seed + 0x9E3779B97F4A7C15U * (index + 1));
}

constexpr RandomKey random_key(std::uint64_t seed) {
  return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
}

// What the last step of random_bits() mixes, the lower half with the upper one.
ZERO_BOTH inline std::uint32_t before_last_mix(RandomKey key, std::uint32_t index) {
  std::uint32_t x = index * 0x9E3779B9U + key.before;
  x = (x ^ (x >> 16)) * 0x7FEB352DU;
  x = (x ^ (x >> 15)) + key.between;
  return (x ^ (x >> 16)) * 0x846CA68BU;
}

// 32 bits of the element `index` of the key's stream.
ZERO_BOTH inline std::uint32_t random_bits(RandomKey key, std::uint32_t index) {
  const std::uint32_t x = before_last_mix(key, index);
  return x ^ (x >> 16);
}

// The upper 16 of random_bits().
ZERO_BOTH inline std::uint32_t upper_random_bits(RandomKey key, std::uint32_t index) {
  return before_last_mix(key, index) >> 16;
}

// FNV-1a, 64 bits: the same on every rank and machine.
constexpr std::uint64_t fnv1a(std::string_view bytes) {
  std::uint64_t value = 14695981039346656037u;
  for (const char c : bytes) value = (value ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return value;
}

}  // namespace zero
