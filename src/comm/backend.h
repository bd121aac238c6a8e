// What the backends share: complaints about calls, how ranks compare theirs, and slices of uneven counts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "zero/communicator.h"

namespace zero {

[[noreturn]] void reject_call(const CollectiveCall& call, const CommunicatorImpl& group, const std::string& what);

// Throws ConfigError when a view is not CPU memory.
void require_cpu(const CollectiveCall& call, const CommunicatorImpl& group);

// What one rank called, small and fixed in size so that ranks can compare their calls.
struct Fingerprint {
  static constexpr std::uint8_t kSplit = kCollectives;

  std::uint64_t sequence = 0;
  std::int64_t input = 0;
  std::int64_t output = 0;
  std::int32_t root = -1;
  std::uint8_t operation = 0;  // a Collective, or kSplit
  Dtype input_dtype = Dtype::f32;
  Dtype output_dtype = Dtype::f32;
  std::uint8_t leaves = 0;  // of a sum: what tells most from others

  static Fingerprint of(std::uint64_t sequence, const CollectiveCall& call);
  static Fingerprint split(std::uint64_t sequence);

  std::string text() const;  // "all_gather #3 (4 fp32 -> 16 fp32)"
  bool operator==(const Fingerprint&) const = default;
};
static_assert(sizeof(Fingerprint) == 32);

// Throws a CommError that lists every rank's call unless all are equal. Ranks are called by these numbers, by their own
// where there are none.
void require_same(std::span<const Fingerprint> calls, int rank, std::span<const int> numbers = {});

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

// Waits for an operation: what it moved.
inline Moved completed(Pending operation) {
  operation.wait();
  return operation.moved();
}

// One of every rank, by rank. Collective.
template <class Part>
std::vector<Part> gather_each(CommunicatorImpl& ranks, const Part& mine) {
  static_assert(std::is_trivially_copyable_v<Part>);
  std::vector<Part> all(static_cast<std::size_t>(ranks.size()));
  constexpr std::int64_t kBytes = sizeof(Part);
  const View every{all.data(), kBytes * ranks.size(), Dtype::u8};
  ranks.run({Collective::all_gather, {&mine, kBytes, Dtype::u8}, every}).wait();
  return all;
}

// The color and key that a rank gave to split().
struct SplitCall {
  std::int32_t color = 0;
  std::int32_t key = 0;
};

// The ranks of `rank`'s group, in the group's order.
std::vector<int> split_group(std::span<const SplitCall> calls, int rank);

}  // namespace zero
