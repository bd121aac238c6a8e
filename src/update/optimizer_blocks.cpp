#include "update/optimizer_blocks.h"

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

void UpdateParts::keep_weights() {
  for (BlockPart* part : {&main, &rest, &parameter}) part->way = Access::read;
  if (main.block != nullptr) parameter = {};
}

std::array<BlockPart, 4 + 2 * kMaxMoments> UpdateParts::all() const {
  std::array<BlockPart, 4 + 2 * kMaxMoments> parts{main, rest, gradient, parameter};
  std::ranges::copy(scales, std::ranges::copy(moments, parts.begin() + 4).out);
  return parts;
}

void place(UpdateRange& range, std::span<void* const> arrays) {
  const bool itself = accumulation(range.dtype) == range.dtype;  // the parameter is its main weight
  range.main = arrays[itself ? 3 : 0];
  range.compensation = arrays[1];
  range.gradient = arrays[2];
  range.parameter = itself ? nullptr : arrays[3];
  for (std::size_t i = 0; i < kMaxMoments; ++i) {
    range.moments[i] = arrays[4 + i];
    range.scales[i] = static_cast<float*>(arrays[4 + kMaxMoments + i]);
  }
}

}  // namespace zero
