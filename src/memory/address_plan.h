// Where the blocks of a stretch of work lie that is known before: which come, how large, and from when to when each
// lives. Two that live at once do not overlap, and all together reach little higher than the largest sum of what lives
// at once (M_D of ZeRO-R, by offline packing). A function of the blocks alone. No torch.
#pragma once

#include <climits>
#include <cstdint>
#include <span>
#include <vector>

namespace zero {

// From the event with which a block comes to the one with which it goes, of a count that both share.
struct Lifetime {
  static constexpr int kStays = INT_MAX;

  std::int64_t bytes;
  int begin;
  int end = kStays;  // beyond the last event

  bool operator==(const Lifetime&) const = default;
};

// Blocks begin at multiples of it.
inline constexpr std::int64_t kBlockStep = 64;

struct AddressPlan {
  std::vector<std::int64_t> offsets;  // by block; -1: it has no bytes, or stays, and is not of the plan
  std::int64_t height = 0;            // bytes
};

// `blocks` in the order in which they come.
AddressPlan plan_addresses(std::span<const Lifetime> blocks);

// The largest sum of bytes, each block's rounded up to kBlockStep, of what lives at once of the plan: no plan is lower.
std::int64_t largest_live_sum(std::span<const Lifetime> blocks);

}  // namespace zero
