// A permutation for each key, of which any element is computed by itself: swap-or-not (Hoang, Morris, Rogaway, 2012).
// No memory but the rounds' keys, whatever the size. No torch.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/random.h"

namespace zero {

class Permutation {
 public:
  // Of 0 to size - 1; `size` is positive.
  Permutation(std::uint64_t size, std::uint64_t key) : size_(size) {
    for (std::size_t i = 0; i < kRounds; ++i) {
      const std::uint64_t round = derived(key, i);
      rounds_[i] = {derived(round, 0) % size, derived(round, 1)};
    }
  }

  // Each round pairs the elements, and swaps a pair or not.
  std::uint64_t operator()(std::uint64_t element) const {
    for (const Round& round : rounds_) {
      const std::uint64_t partner = round.sum >= element ? round.sum - element : round.sum + (size_ - element);
      if (derived(round.key, std::max(element, partner)) >> 63) element = partner;
    }
    return element;
  }

 private:
  static constexpr std::size_t kRounds = 90;  // three for each bit of a size of 2^30
  struct Round {
    std::uint64_t sum = 0;  // of the two elements of a pair, modulo the size
    std::uint64_t key = 0;
  };

  std::uint64_t size_;
  std::array<Round, kRounds> rounds_{};
};

}  // namespace zero
