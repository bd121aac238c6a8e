// The memory of one simulated device: addresses that fault, blocks, and what they hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "device/segments.h"
#include "device/streams.h"

namespace zero::test::accelerator {

// Of a task, while it may not have run.
struct Use {
  Point at;
  const char* begin;
  const char* end;
  bool writes;
};

struct Block {
  char* begin;
  std::size_t bytes;
  Key stream;  // that it was allocated on
  Segments::Id cached;
  std::vector<Use> uses;
  std::set<Key> recorded;
  bool freed = false;
};

// Addresses are never handed out twice, so that a stale one is known as such. Not thread-safe.
class Memory {
 public:
  Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  static std::size_t rounded(std::size_t bytes) { return (bytes + 511) / 512 * 512; }
  bool has_room(std::size_t bytes) const { return allocated + static_cast<std::int64_t>(rounded(bytes)) <= capacity; }
  std::shared_ptr<Block> take(std::size_t bytes, Key stream);
  // The block that holds the address, unless it was released; or null.
  std::shared_ptr<Block> find(const void* address) const;
  // Whether the address is one of this device's that was handed out.
  bool handed_out(const void* address) const;
  bool owns(const void* address) const;
  void* shadow(const void* address) const { return shadows_ + (static_cast<const char*>(address) - addresses_); }

  void poison(const Block& block) const;
  // No more of the streams that use the block has a use for it.
  void release(const Block& block);
  void count_free(const Block& block);

  std::int64_t capacity;
  Segments cached;  // what a caching allocator would have
  std::int64_t allocated = 0, peak = 0, reserved = 0, allocations = 0, live = 0;

 private:
  void give_up(const Block& block);
  void give_back(std::size_t keep);

  int file_;
  char* addresses_;
  char* shadows_;
  std::size_t next_ = 0;
  std::map<const char*, std::shared_ptr<Block>> blocks_;
  std::deque<std::pair<std::size_t, std::size_t>> released_;  // still poison: offset, bytes
  std::size_t released_bytes_ = 0;
};

}  // namespace zero::test::accelerator
