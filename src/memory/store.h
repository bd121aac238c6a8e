// The memory of one tier on a rank, of which blocks are taken. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "memory/block.h"
#include "memory/tier_meter.h"
#include "zero/disk.h"
#include "zero/ledger.h"
#include "zero/plan.h"

namespace zero {

// Thread-safe, if its Book is.
class Store {
 public:
  // Is told whose bytes come, and, with a minus, go.
  using Book = std::function<void(Owner owner, int unit, Tier tier, std::int64_t bytes)>;

  Store(Tier tier, Book book) : tier_(tier), book_(std::move(book)) {}
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Uninitialised; booked to `owner`, of this unit of the layout or, -1, of none, as long as it lives. Throws
  // StoreError or std::bad_alloc where there is no room.
  Block take(std::int64_t bytes, Owner owner, int unit = -1);

  // Which outlives it and counts what moves, by the blocks that are taken from now on.
  void meter_by(TierMeter& meter) { meter_ = &meter; }

  Tier tier() const { return tier_; }
  // Whether its blocks are.
  virtual bool addressable() const = 0;
  // Where they are not: the bytes of an operation that suit it, 2 KiB at least.
  virtual std::int64_t transfer() const { return std::int64_t{1} << 20; }
  // Bytes that are as far from a multiple of it in memory as in the block go without a copy.
  virtual std::int64_t page() const { return 1; }

 private:
  virtual std::unique_ptr<Block::Place> provide(std::int64_t bytes, Owner owner, int unit) = 0;

  Tier tier_;
  Book book_;
  TierMeter* meter_ = nullptr;
};

// Of a block in the host's memory, addressable; null for a block of no bytes.
std::unique_ptr<Block::Place> in_memory(std::shared_ptr<void> memory);

// Memory that is computed with where it lies.
class AddressableStore final : public Store {
 public:
  using Allocate = std::function<std::unique_ptr<Block::Place>(std::size_t bytes)>;
  AddressableStore(Tier tier, Allocate allocate, Book book)
      : Store(tier, std::move(book)), allocate_(std::move(allocate)) {}

  bool addressable() const override { return true; }

 private:
  std::unique_ptr<Block::Place> provide(std::int64_t bytes, Owner owner, int unit) override;

  Allocate allocate_;
};

// What stores on disks are made of: addressable memory for their buffers, which outlives them.
struct DiskSetup {
  Store& memory;
  const DiskOptions& options;
};

// The store of a state, in its tier, for an engine that this thread builds: `allocate` gives the device's memory.
std::unique_ptr<Store> make_store(State state, Tier tier, AddressableStore::Allocate allocate, Store::Book book,
                                  const DiskSetup& disk);

// For tests: what makes the stores of engines that this thread builds from now on; where it is null, or its result,
// make_store() itself does.
using MakeStore = std::function<std::unique_ptr<Store>(State state, Store::Book book)>;
void replace_stores(MakeStore make);

}  // namespace zero
