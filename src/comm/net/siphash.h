// SipHash-2-4 with 128 bits of result (Aumasson and Bernstein, 2012): who does not know the key can neither foresee nor
// make one for bytes of his choice.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace zero {

using Secret = std::array<std::uint8_t, 16>;
using Seal = std::array<std::uint8_t, 16>;

namespace siphash {

struct State {
  std::uint64_t v0, v1, v2, v3;

  void round() {
    v0 += v1, v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0, v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32);
    v2 += v1, v0 += v3;
    v1 = std::rotl(v1, 17) ^ v2, v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  }
  void absorb(std::uint64_t word) {
    v3 ^= word;
    round(), round();
    v0 ^= word;
  }
  std::uint64_t finish(std::uint64_t mark) {
    (mark == 0xee ? v2 : v1) ^= mark;
    round(), round(), round(), round();
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

// Of at most 8 bytes, the first one lowest.
inline std::uint64_t word(const std::uint8_t* bytes, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value |= std::uint64_t{bytes[i]} << 8 * i;
  return value;
}

}  // namespace siphash

inline Seal sealed(const Secret& key, std::span<const std::uint8_t> bytes) {
  const std::uint64_t k0 = siphash::word(key.data(), 8), k1 = siphash::word(key.data() + 8, 8);
  siphash::State state{k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du ^ 0xee, k0 ^ 0x6c7967656e657261u,
                       k1 ^ 0x7465646279746573u};
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) state.absorb(siphash::word(bytes.data() + at, 8));
  state.absorb(siphash::word(bytes.data() + at, bytes.size() - at) | std::uint64_t{bytes.size()} << 56);
  const std::uint64_t halves[] = {state.finish(0xee), state.finish(0xdd)};
  Seal seal;
  for (std::size_t i = 0; i < seal.size(); ++i) seal[i] = static_cast<std::uint8_t>(halves[i / 8] >> 8 * (i % 8));
  return seal;
}

// Derived by everybody who knows the token.
inline Secret secret_of(std::string_view token) {
  return sealed({}, {reinterpret_cast<const std::uint8_t*>(token.data()), token.size()});
}

}  // namespace zero
