#include "partition/staging.h"

#include <algorithm>

#include "base/blockwise.h"
#include "partition/routes.h"

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
  const std::int64_t depth = disk.depth > 0 ? disk.depth : disk_depth(block);
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

StagingShape staging_of_update(const StateTiers& tiers, bool on_device, std::int64_t transfer, std::int64_t page) {
  const auto [optimizer, gradient, parameter, divided] = tiers;
  if (optimizer == Tier::device && gradient == Tier::device && parameter == Tier::device) return {transfer, 0, page};
  const bool comes = on_device && divided;
  const std::int64_t arrays = (comes || passes(optimizer, on_device) ? StagingShape::kArrays : 0) +
                              (comes || passes(gradient, on_device)) + passes(parameter, on_device);
  return {transfer, on_device ? std::max(arrays, std::int64_t{1}) : arrays, page};
}

std::int64_t staging_bytes(const Plan& plan, const DiskOptions& disk, bool on_device) {
  const StateTiers tiers{.optimizer = plan[State::optimizer].tier,
                         .gradient = plan[State::gradient].tier,
                         .parameter = plan[State::parameter].tier,
                         .divided = plan[State::optimizer].share < 1 && plan[State::parameter].tier != Tier::device};
  const auto shape = [&](bool on_disk) {
    if (!on_disk) return StagingShape{kCopyBlock, 1};
    return StagingShape{disk_transfer(disk.block), StagingShape::kArrays, kDiskPage};
  };
  const auto buffers = [](const StagingShape& each) {
    return each.arrays == 0 ? 0 : StagingShape::kBuffers * each.allocated();
  };
  const std::int64_t disks =
      (tiers.optimizer == Tier::disk) + (tiers.gradient == Tier::disk) + (tiers.parameter == Tier::disk);
  const std::int64_t stores = disks + (plan[State::activation].tier == Tier::disk);
  const StagingShape update = shape(disks > 0);
  const StagingShape bringing{update.transfer, on_device && tiers.parameter == Tier::disk, update.page};
  const std::int64_t bytes = stores * of_store(disk) + buffers(bringing) +
                             buffers(staging_of_update(tiers, on_device, update.transfer, update.page));
  if (tiers.gradient == Tier::device) return bytes;
  // Of the thread that runs backward, also where the vote reads; and of the exchange's.
  const bool in_backward = tiers.gradient == Tier::disk || !Routes(plan).reduces_each();
  const bool in_exchange = plan[State::gradient].rest.shard == Placement::sharded;
  return bytes + (in_backward + in_exchange) * buffers(shape(tiers.gradient == Tier::disk));
}

}  // namespace zero
