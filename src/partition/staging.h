// The buffers through which states on other tiers than the device pass: constant in number and size, whatever the
// model. What the estimate counts, and what takes them asks for. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "zero/disk.h"
#include "zero/plan.h"

namespace zero {

// Where stretches of arrays are together while they are computed with.
struct StagingShape {
  static constexpr std::int64_t kBuffers = 3;  // one is read into, one computed with, one written from
  static constexpr std::int64_t kArrays = 4;   // as wide as the widest element, in each

  std::int64_t transfer;  // bytes of an operation of the store
  std::int64_t arrays = kArrays;
  std::int64_t page = 1;  // what is as far from a page in memory as in its block goes without a copy

  // Of each array; a multiple of what 8-bit moments have a scale for.
  std::int64_t elements() const;
  // So many of each where there are that many arrays; a multiple of 16.
  std::int64_t elements_of(std::int64_t count) const;
  // So many of `count` elements of which `parts` arrays together have so many bytes: as many times elements() as there
  // is room for, once at least.
  std::int64_t elements_of(std::int64_t count, std::int64_t bytes, std::int64_t parts) const;
  std::int64_t bytes() const;      // of a buffer
  std::int64_t allocated() const;  // likewise, with what brings its beginning to a page
};

// Bytes of a copy between a device and the host.
inline constexpr std::int64_t kCopyBlock = std::int64_t{1} << 20;
// Bytes of an operation on a disk and of those under way, where options leave them to be measured.
inline constexpr std::int64_t kDiskBlock = std::int64_t{1} << 20;
inline constexpr std::int64_t kDiskUnderWay = std::int64_t{8} << 20;
// Operations of `block` bytes under way on each disk, likewise.
constexpr std::int64_t disk_depth(std::int64_t block) {
  return std::max<std::int64_t>(kDiskUnderWay / block, 1);
}
inline constexpr std::int64_t kDiskPage = 4096;

// What of a state passes through buffers: what is on disk, and where the model is on a device, and the host computes
// with it, what lies there.
inline bool passes(Tier tier, bool on_device) {
  return tier == Tier::disk || (on_device && tier == Tier::device);
}
// The buffers of an update, whose operations have `transfer` bytes; of no arrays where nothing passes. First values
// pass from a device, whatever its update takes.
struct StateTiers {
  Tier optimizer, gradient, parameter;
  bool divided = false;  // units keep the optimizer, and gradients, on the device, of which parameters are elsewhere
};
StagingShape staging_of_update(const StateTiers& tiers, bool on_device, std::int64_t transfer, std::int64_t page);

// Of a rank, at most, under a plan as it is on its mesh: of the host's memory, which is the device's own unless the
// model is `on_device`.
std::int64_t staging_bytes(const Plan& plan, const DiskOptions& disk, bool on_device);

// Bytes of an array of the widest elements in a stretch: an operation's, where options say how large these are, else
// those of two of the largest that are tried, so that while one stretch is waited for the next keeps the disk busy.
constexpr std::int64_t disk_transfer(std::int64_t block) {
  return block > 0 ? block : std::int64_t{2} << 20;
}

}  // namespace zero
