#include "partition/staging.h"

#include <algorithm>

#include "base/blockwise.h"
#include "partition/transitions.h"

namespace zero {
namespace {

constexpr std::int64_t kWidest = 8;      // bytes of an element
constexpr std::int64_t kVector = 64;     // to whose multiple parts begin, where pages do not say where
constexpr std::int64_t kSmallParts = 4;  // scales, beside the arrays

// Of a part: what is before it on its first page, and behind it on its last.
std::int64_t lost(const StagingShape& shape) {
  return shape.page > 1 ? 2 * shape.page : 0;
}

std::int64_t of_store(const DiskOptions& disk) {
  const auto disks = std::max<std::int64_t>(static_cast<std::int64_t>(disk.directories.size()), 1);
  const std::int64_t block = disk.block > 0 ? disk.block : kDiskBlock;
  const std::int64_t depth = disk.depth > 0 ? disk.depth : std::max<std::int64_t>(kDiskUnderWay / block, 1);
  return disks * block * depth + kDiskPage;
}

}  // namespace

std::int64_t StagingShape::elements() const {
  return std::max(transfer / kWidest / kStateBlock, std::int64_t{1}) * kStateBlock;
}

std::int64_t StagingShape::elements_of(std::int64_t count) const {
  return (bytes() / count - lost(*this)) / (2 * kVector) * (2 * kVector) / kWidest;
}

std::int64_t StagingShape::elements_of(std::int64_t count, std::int64_t of_them, std::int64_t parts) const {
  const std::int64_t room = bytes() - parts * std::max(lost(*this), 2 * kVector);
  return std::max(room * count / of_them / elements(), std::int64_t{1}) * elements();
}

std::int64_t StagingShape::bytes() const {
  return arrays * kWidest * elements() + (page > 1 ? (arrays + kSmallParts) * lost(*this) : 0);
}

std::int64_t StagingShape::allocated() const {
  return bytes() + (page > 1 ? page : 0);
}

std::int64_t staging_bytes(const Plan& plan, const DiskOptions& disk) {
  const auto there = [&](State state) { return plan[state].tier == Tier::disk; };
  const bool optimizer = there(State::optimizer), gradient = there(State::gradient),
             parameter = there(State::parameter);
  const std::int64_t transfer = disk.block > 0 ? disk.block : kDiskBlock;
  const auto buffers = [&](std::int64_t arrays) {
    return StagingShape::kBuffers * StagingShape{transfer, arrays, kDiskPage}.allocated();
  };
  std::int64_t bytes = 0;
  if (optimizer) bytes += of_store(disk);
  if (parameter) bytes += of_store(disk);
  if (optimizer || gradient || parameter) bytes += buffers(StagingShape::kArrays + gradient + parameter);
  if (!gradient) return bytes;
  const bool in_backward = !movement(plan).reduces_each || plan.accumulate() > 1;
  const bool in_exchange = plan[State::gradient].placement == Placement::sharded;
  return bytes + of_store(disk) + (in_backward + in_exchange) * buffers(StagingShape::kArrays);
}

}  // namespace zero
