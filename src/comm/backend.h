// What the backends share: complaints about arguments, and slices of uneven counts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "zero/communicator.h"

namespace zero {

[[noreturn]] void reject_call(Collective operation, const CommunicatorImpl& group, const std::string& what);

// Throws ConfigError when a view is not CPU memory.
void require_cpu(Collective operation, const CommunicatorImpl& group, ConstView a, ConstView b);

inline const char* bytes_of(const void* data) {
  return static_cast<const char*>(data);
}
inline char* bytes_of(void* data) {
  return static_cast<char*>(data);
}

// What is there already stays.
inline void copy(void* to, const void* from, std::int64_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, static_cast<std::size_t>(bytes));
}

// `count` elements over `size` ranks: all slices have ceil(count / size) elements but the last ones.
struct Slices {
  std::int64_t count;
  int size;

  std::int64_t length() const { return (count + size - 1) / size; }
  std::int64_t begin(int rank) const { return std::min(count, rank * length()); }
  std::int64_t extent(int rank) const { return begin(rank + 1) - begin(rank); }
};

// An all_reduce of at most this many bytes is an exchange of everything and one local sum, a larger
// one a reduce_scatter and an all_gather: over Gloo.
inline constexpr std::int64_t kSmallAllReduce = 64 * 1024;

// Waits for an operation: what it moved.
inline Moved completed(Pending operation) {
  operation.wait();
  return operation.moved();
}

// The color and key that a rank gave to split().
struct SplitCall {
  std::int32_t color = 0;
  std::int32_t key = 0;
};

// The ranks of `rank`'s group, in the group's order.
std::vector<int> split_group(std::span<const SplitCall> calls, int rank);

}  // namespace zero
