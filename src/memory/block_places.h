// The places of a recorded stretch's blocks by an AddressPlan: which blocks lie where others lay before. No torch.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "memory/address_plan.h"

namespace zero {

class BlockPlaces {
 public:
  // In the order in which they come.
  explicit BlockPlaces(std::vector<Lifetime> blocks);

  int count() const { return static_cast<int>(blocks_.size()); }
  std::int64_t height() const { return plan_.height; }
  std::int64_t bytes(int block) const { return blocks_[index(block)].bytes; }
  // -1: it has none.
  std::int64_t offset(int block) const { return plan_.offsets[index(block)]; }
  // What lay last on any of its bytes. If all up to the block have come to their places, and these have gone, nothing
  // lives there.
  std::span<const int> before(int block) const {
    const auto begin = before_begin_[index(block)];
    return std::span(before_).subspan(begin, before_begin_[index(block) + 1] - begin);
  }

  // Offsets at which blocks begin, by number.
  int starts() const { return static_cast<int>(starts_.size()); }
  int start(int block) const { return start_[index(block)]; }
  int start_at(std::int64_t offset) const { return starts_.at(offset); }

 private:
  static std::size_t index(int block) { return static_cast<std::size_t>(block); }

  std::vector<Lifetime> blocks_;
  AddressPlan plan_;
  std::vector<int> before_;  // of all, one behind the other
  std::vector<std::size_t> before_begin_;
  std::unordered_map<std::int64_t, int> starts_;
  std::vector<int> start_;  // by block
};

}  // namespace zero
