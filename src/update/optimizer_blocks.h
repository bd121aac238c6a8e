// What the optimizer keeps of a unit on a rank, in blocks of a store, and which bytes of them a stretch of a parameter
// takes. No torch.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "device/kernels.h"
#include "memory/staged_pass.h"
#include "memory/store.h"
#include "partition/moments.h"
#include "partition/packed_ranges.h"

namespace zero {

struct OptimizerBlocks {
  struct Moment {
    MomentArray array;
    PackedRanges places;
    Block values;
  };
  std::int64_t origin = 0;  // element of the unit that they begin with
  Block main;               // Remainder::main_weights
  Block rest;               // Remainder::kept
  std::vector<Moment> moments;
  Block scales;                         // of moments in codes, piece by piece, moment by moment
  std::vector<std::int64_t> scales_of;  // where each piece's begin
};

// Bytes of them: without a block, what is not kept.
struct UpdateParts {
  BlockPart main, rest;
  BlockPart gradient;   // which is the gradients' to give
  BlockPart parameter;  // as it is stored: the unit's
  std::array<BlockPart, kMaxMoments> moments, scales;

  // For who reads weights and leaves them as they are.
  void keep_weights();
  // In the order in which place() has them.
  std::array<BlockPart, 4 + 2 * kMaxMoments> all() const;
};

// Of elements [begin, end) of a piece, the unit's piece number `which`, where parameters are stored in `stored`.
UpdateParts parts_of(OptimizerBlocks& blocks, const Optimizer& optimizer, Dtype stored, const Piece& piece,
                     std::size_t which, std::int64_t begin, std::int64_t end);
// Sets what the range has of them, from where all() of them lie.
void place(UpdateRange& range, std::span<void* const> arrays);

}  // namespace zero
