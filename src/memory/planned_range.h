// Ranges of addresses in which blocks lie where a plan has put them. No torch.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory/block_places.h"

namespace zero {

class PlannedRange;

// Address space for ranges, cut into equal lots, so that a block's address says of which range it is. Thread-safe.
class AddressLots {
 public:
  static constexpr std::size_t kLots = 64;

  // In memory that is reserved, of whole pages.
  AddressLots(char* begin, std::size_t bytes, std::size_t page);

  std::size_t lot_bytes() const { return lot_; }
  bool owns(const void* data) const { return data >= begin_ && data < begin_ + kLots * lot_; }
  // What a range of these has placed. Returns the bytes that were asked for.
  std::size_t give(void* data);

  struct Usage {
    std::int64_t live = 0;  // bytes of blocks
    std::int64_t held = 0;  // of pages that ranges have
  };
  Usage usage() const { return {live_, held_}; }

 private:
  friend class PlannedRange;

  char* begin_;
  std::size_t lot_;
  std::array<std::atomic<PlannedRange*>, kLots> ranges_{};
  std::atomic<std::int64_t> live_ = 0, held_ = 0;
};

// Goes when its owner has let it go and none of its blocks lives.
//
// Thread-safety: give() is for any thread, all else for the owner's.
class PlannedRange {
 public:
  // Null: there is no lot left.
  static PlannedRange* of(AddressLots& lots);
  PlannedRange(const PlannedRange&) = delete;
  PlannedRange& operator=(const PlannedRange&) = delete;
  void let_go() { leave(); }

  bool idle() const { return users_.load(std::memory_order_acquire) == 1; }
  // Blocks lie at these from now on, which are no higher than a lot. While it is idle.
  void lay_out(std::shared_ptr<const BlockPlaces> places);
  // The place of a block, which lives from now on; the blocks before it have been placed, those with a place. Null: it
  // has none, or what lay there lives yet.
  void* place(int block);
  std::size_t give(const void* data);

 private:
  PlannedRange(AddressLots& lots, std::size_t lot);
  ~PlannedRange() = default;
  void leave();

  AddressLots& lots_;
  std::size_t lot_;
  char* begin_;
  std::int64_t touched_ = 0;  // bytes that may have pages
  std::shared_ptr<const BlockPlaces> places_;
  std::vector<std::atomic<bool>> lives_;    // by block
  std::vector<std::atomic<int>> occupant_;  // by where it starts, the block that came last
  std::atomic<int> users_ = 1;              // the owner, and blocks that live
};

}  // namespace zero
