// What a block of LibTorch's takes of memory on a CPU. No torch.
#pragma once

#include <cstdint>

namespace planner {

// Of numbers and tokens that are there throughout.
inline constexpr std::int64_t kScalars = 512;

// Small blocks come from malloc, which gives a little more than it is asked for.
constexpr std::int64_t given(std::int64_t bytes) {
  constexpr std::int64_t kSmall = 128 << 10, kSlack = 48;
  return bytes < kSmall ? bytes + kSlack : bytes;
}

}  // namespace planner
