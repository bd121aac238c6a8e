#include "engine/optimizer_blocks.h"

#include <algorithm>

namespace zero {
namespace {

BlockPart part_of(Block& block, std::int64_t begin, std::int64_t count, Dtype dtype) {
  if (!block) return {};
  return {&block, begin * size_of(dtype), count * size_of(dtype)};
}

}  // namespace

UpdateParts parts_of(OptimizerBlocks& blocks, const Optimizer& optimizer, Dtype stored, const Piece& piece,
                     std::size_t which, std::int64_t begin, std::int64_t end) {
  UpdateParts parts;
  const std::int64_t count = end - begin;
  parts.main = part_of(blocks.main, begin - blocks.origin, count, accumulation(stored));
  parts.rest = part_of(blocks.rest, begin - blocks.origin, count, stored);
  for (OptimizerBlocks::Moment& moment : blocks.moments) {
    if (!moment.array.holds(optimizer)) continue;
    const auto i = static_cast<std::size_t>(moment.array.moment);
    const Dtype dtype = moment.array.dtype(stored);
    parts.moments[i] = part_of(moment.values, moment.places.at(begin), count, dtype);
    if (dtype != Dtype::u8) continue;
    const std::int64_t before = begin / kStateBlock - piece.begin / kStateBlock;
    parts.scales[i] =
        part_of(blocks.scales, blocks.scales_of[which] + static_cast<std::int64_t>(i) * scales(piece) + before,
                scales({piece.slot, begin, end}), Dtype::f32);
  }
  return parts;
}

std::array<BlockPart, 3 + 2 * kMaxMoments> UpdateParts::all() const {
  std::array<BlockPart, 3 + 2 * kMaxMoments> parts{main, rest, gradient};
  std::ranges::copy(scales, std::ranges::copy(moments, parts.begin() + 3).out);
  return parts;
}

void place(UpdateRange& range, std::span<void* const> arrays) {
  if (arrays[0] != nullptr) range.main = arrays[0];
  range.rest = arrays[1];
  range.gradient = arrays[2];
  for (std::size_t i = 0; i < kMaxMoments; ++i) {
    range.moments[i] = arrays[3 + i];
    range.scales[i] = static_cast<float*>(arrays[3 + kMaxMoments + i]);
  }
}

}  // namespace zero
