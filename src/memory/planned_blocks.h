// Blocks of micro-batches that come again and again, laid out by plan: what a micro-batch takes and gives back is
// recorded, one that came twice is planned (address_plan.h), and those like it get their blocks where the plan says. As
// soon as one takes another block than its plan has, or takes a place in which something lives, the rest of it gets
// none. What lives beyond its micro-batch is in no plan. No torch.
//
// Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "memory/allocation_record.h"
#include "memory/block_places.h"
#include "memory/planned_range.h"

namespace zero {

class PlannedBlocks {
 public:
  explicit PlannedBlocks(AddressLots& lots) : lots_(lots) {}
  ~PlannedBlocks();
  PlannedBlocks(const PlannedBlocks&) = delete;
  PlannedBlocks& operator=(const PlannedBlocks&) = delete;

  // What comes is another micro-batch.
  void begin();

  // Where the next block lies; null: it is to be taken elsewhere, and took() has it.
  void* take(std::size_t bytes);
  void took(void* data);
  // Any memory is about to be freed on this thread. What other threads free stays, as far as plans go.
  void freed(const void* data);

  // Whether the micro-batch goes by a plan so far.
  bool follows() const { return following_ != nullptr; }

 private:
  // Micro-batches alike.
  struct Known {
    std::uint64_t signature;
    std::uint64_t next;                           // what came after the last of them
    std::shared_ptr<const BlockPlaces> places{};  // null: it came once
  };

  Known* known(std::uint64_t signature);
  void learn();
  void plan(Known& known);
  std::shared_ptr<const BlockPlaces> likeliest();
  void follow();
  // Whether there is one in which nothing lives.
  bool has_range(const BlockPlaces& places);
  void* place(int number, std::int64_t bytes);

  AddressLots& lots_;
  AllocationRecord record_;
  std::unordered_map<const void*, int> live_;  // numbers of what was seen coming
  int next_ = -1;                              // number of what took() has
  std::vector<Known> known_;                   // latest first
  std::optional<std::uint64_t> latest_;
  PlannedRange* range_ = nullptr;
  std::shared_ptr<const BlockPlaces> following_;
  int busy_ = 0;  // micro-batches in a row in which something of others lived in the range
};

}  // namespace zero
