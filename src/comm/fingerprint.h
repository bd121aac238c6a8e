// What one rank called, small and fixed in size so that ranks can compare their calls.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "zero/communicator.h"

namespace zero {

struct Fingerprint {
  static constexpr std::uint8_t kSplit = kCollectives;

  std::uint64_t sequence = 0;
  std::int64_t input = 0;
  std::int64_t output = 0;
  std::int32_t root = -1;
  std::uint8_t operation = 0;  // a Collective, or kSplit
  Dtype input_dtype = Dtype::f32;
  Dtype output_dtype = Dtype::f32;
  std::uint8_t zero = 0;

  static Fingerprint of(std::uint64_t sequence, Collective operation, ConstView input, ConstView output, int root = -1);
  static Fingerprint split(std::uint64_t sequence);

  std::string text() const;  // "all_gather #3 (4 fp32 -> 16 fp32)"
  bool operator==(const Fingerprint&) const = default;
};
static_assert(sizeof(Fingerprint) == 32);

// Throws a CommError that lists every rank's call unless all are equal. Ranks are called by their numbers
// from `first_rank`.
void require_same(std::span<const Fingerprint> calls, int rank, int first_rank = 0);

}  // namespace zero
