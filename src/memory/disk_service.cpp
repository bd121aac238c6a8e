#include "memory/disk_service.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/elements.h"
#include "memory/disk_operation.h"

namespace zero {
// Where nothing goes past the page cache and nothing is checked, a byte is a page.
DiskService::DiskService(const StripedFiles& files, std::unique_ptr<DiskQueue> queue, std::span<char> buffers,
                         std::int64_t block, bool checks)
    : files_(files), queue_(std::move(queue)), grain_{.block = block}, checks_(checks) {
  for (const DiskFile& file : files_.files()) {
    if (file.direct() || checks) grain_.page = kDiskPage;
    grain_.alignment = std::max(grain_.alignment, file.alignment());
  }
  slots_.resize(buffers.size() / static_cast<std::size_t>(block));
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].buffer = buffers.data() + static_cast<std::int64_t>(i) * block;
    for (DiskTransfer& transfer : slots_[i].transfers) transfer.tag = i;
    free_.push_back(&slots_[i]);
  }
  thread_ = std::thread([this] { run(); });
}

DiskService::~DiskService() {
  while (!told_to_stop()) std::this_thread::yield();
  thread_.join();
}

// False where the thread may be asleep and did not hear of it.
bool DiskService::told_to_stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  try {
    if (!broken_) queue_->wake();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

Pending DiskService::submit(std::shared_ptr<DiskOperation> operation) {
  std::vector<Piece> pieces = cut(operation);
  operation->consists_of(static_cast<int>(pieces.size()));
  origin_.require("a disk can be neither read nor written");
  const std::lock_guard lock(mutex_);
  if (broken_) broken_->raise();
  const std::size_t before = submitted_.size();
  try {
    std::ranges::move(pieces, std::back_inserter(submitted_));
    if (!woken_) queue_->wake();
    woken_ = true;
  } catch (const std::exception& error) {
    submitted_.resize(before);  // nobody waits for it: its memory is the caller's again
    throw StoreError(operation->extent.whose + ": the disk store was given nothing to do: " + error.what());
  }
  return Pending(std::move(operation));
}

// Into pieces of like size, at pages and at the ends of stripes.
std::vector<DiskService::Piece> DiskService::cut(const std::shared_ptr<DiskOperation>& operation) const {
  std::vector<Piece> pieces;
  const std::int64_t end = operation->at + operation->bytes;
  for (std::int64_t at = operation->at; at < end;) {
    const std::int64_t stretch = std::min(files_.end_of_stripe(at), end), first = page_of(at);
    const std::int64_t count = (round_up(stretch, grain_.page) - first + grain_.block - 1) / grain_.block;
    const std::int64_t size = round_up((stretch - first + count - 1) / count, grain_.page);
    const std::int64_t to = std::min(stretch, first + size);
    pieces.push_back({operation, at, to});
    at = to;
  }
  return pieces;
}

DiskService::Edges DiskService::edges(const Piece& piece) const {
  const DiskExtent& extent = piece.operation->extent;
  Edges result;
  const std::int64_t head = page_of(piece.begin), tail = page_of(piece.end);
  const bool ends_inside = piece.end != tail && piece.end != extent.at + extent.bytes;
  if (piece.begin != head) result.pages[result.count++] = head;
  if (ends_inside && (result.count == 0 || tail != head)) result.pages[result.count++] = tail;
  return result;
}

bool DiskService::lock(const Edges& edges, bool writes) {
  const auto can = [&](std::int64_t page) {
    const auto found = locked_.find(page);
    return found == locked_.end() || (!writes && found->second > 0);
  };
  if (!std::ranges::all_of(edges.all(), can)) return false;
  for (const std::int64_t page : edges.all()) locked_[page] += writes ? -1 : 1;
  return true;
}

void DiskService::unlock(const Edges& edges) {
  for (const std::int64_t page : edges.all()) {
    const auto found = locked_.find(page);
    found->second -= found->second > 0 ? 1 : -1;
    if (found->second == 0) locked_.erase(found);
  }
}

void DiskService::run() {
  try {
    serve();
  } catch (const std::exception& error) {
    fail_all({std::string("the disk store has failed: ") + error.what(), {}});
  }
}

void DiskService::serve() {
  for (;;) {
    admit();
    begin_what_can();
    if (free_.size() == slots_.size() && ended()) return;
    if (DiskTransfer* const over = queue_->wait()) finished(*over);
  }
}

void DiskService::admit() {
  const std::lock_guard lock(mutex_);
  woken_ = false;
  std::ranges::move(submitted_, std::back_inserter(waiting_));
  submitted_.clear();
}

bool DiskService::ended() {
  const std::lock_guard lock(mutex_);
  return stopping_ && submitted_.empty();
}

// In their order, but for those that wait for a page that they share with one under way.
void DiskService::begin_what_can() {
  for (auto next = waiting_.begin(); next != waiting_.end() && !free_.empty();) {
    const bool pointless = next->operation->failed();
    if (!pointless && !lock(edges(*next), next->operation->writes)) {
      ++next;
      continue;
    }
    const Piece piece = std::move(*next);
    next = waiting_.erase(next);
    if (pointless) {
      piece.operation->piece_is_over();
      continue;
    }
    Slot& slot = *free_.back();
    free_.pop_back();
    slot.piece = piece;
    begin(slot);
  }
}

void DiskService::take_place(Slot& slot) {
  const DiskOperation& operation = *slot.piece.operation;
  slot.first = page_of(slot.piece.begin);
  slot.last = round_up(slot.piece.end, grain_.page);
  const auto address = reinterpret_cast<std::uintptr_t>(operation.memory + (slot.piece.begin - operation.at));
  slot.straight = slot.first == slot.piece.begin && slot.last == slot.piece.end &&
                  address % static_cast<std::uintptr_t>(grain_.alignment) == 0;
  slot.fault.reset();
}

char* DiskService::memory_of(const Slot& slot) const {
  const DiskOperation& operation = *slot.piece.operation;
  return operation.memory + (slot.piece.begin - operation.at);
}

void DiskService::begin(Slot& slot) {
  take_place(slot);
  slot.phase = Phase::moves;
  const bool writes = slot.piece.operation->writes;
  const Edges shared = edges(slot.piece);
  if (!writes || shared.count == 0) {
    if (writes) fill(slot);
    return move(slot);
  }
  slot.phase = Phase::reads_edges;
  slot.under_way = 0;
  for (const std::int64_t page : shared.all())
    transfer(slot, page, slot.buffer + (page - slot.first), grain_.page, /*writes=*/false);
}

void DiskService::move(Slot& slot) {
  slot.phase = Phase::moves;
  slot.under_way = 0;
  transfer(slot, slot.first, slot.straight ? memory_of(slot) : slot.buffer, slot.last - slot.first,
           slot.piece.operation->writes);
}

void DiskService::transfer(Slot& slot, std::int64_t at, char* memory, std::int64_t bytes, bool writes) {
  const StripedFiles::Spot spot = files_.spot(at);
  DiskTransfer& next = slot.transfers[static_cast<std::size_t>(slot.under_way++)];
  next.file = spot.file.descriptor();
  next.at = spot.at;
  next.memory = memory;
  next.bytes = bytes;
  next.writes = writes;
  next.begin();
  queue_->submit(next);
}

// Puts what is to be written where it is written from.
void DiskService::fill(Slot& slot) {
  const auto bytes = static_cast<std::size_t>(slot.piece.end - slot.piece.begin);
  const DiskExtent& extent = slot.piece.operation->extent;
  const char* from = memory_of(slot);
  if (!slot.straight) {
    std::memcpy(slot.buffer + (slot.piece.begin - slot.first), from, bytes);
    if (slot.piece.end == extent.at + extent.bytes)
      std::memset(slot.buffer + (slot.piece.end - slot.first), 0, static_cast<std::size_t>(slot.last - slot.piece.end));
    from = slot.buffer;
  }
  remember(extent, slot.first, from, slot.last - slot.first);
}

void DiskService::finished(DiskTransfer& over) {
  Slot& slot = slots_[over.tag];
  if (over.error != 0 && !slot.fault)
    slot.fault = disk_fault(slot.piece.operation->extent.whose, over, files_.spot(slot.first).file);
  if (--slot.under_way > 0) return;
  if (!slot.fault) slot.fault = deliver(slot);
  if (slot.under_way == 0) release(slot);
}

// What follows when its transfers are over.
std::optional<DiskFault> DiskService::deliver(Slot& slot) {
  const Piece& piece = slot.piece;
  const DiskExtent& extent = piece.operation->extent;
  if (slot.phase == Phase::reads_edges) {
    const Edges shared = edges(piece);
    for (const std::int64_t page : shared.all())
      if (auto fault = verify(extent, page, slot.buffer + (page - slot.first), grain_.page)) return fault;
    fill(slot);
    move(slot);
    return {};
  }
  if (piece.operation->writes) return {};
  auto fault = verify(extent, slot.first, slot.straight ? memory_of(slot) : slot.buffer, slot.last - slot.first);
  if (!fault && !slot.straight)
    std::memcpy(memory_of(slot), slot.buffer + (piece.begin - slot.first),
                static_cast<std::size_t>(piece.end - piece.begin));
  return fault;
}

void DiskService::release(Slot& slot) {
  const Piece piece = std::exchange(slot.piece, {});
  unlock(edges(piece));
  free_.push_back(&slot);
  piece.operation->piece_is_over(slot.fault);
}

// The queue itself failed: what is under way cannot be waited for.
void DiskService::fail_all(const DiskFault& fault) {
  const std::lock_guard lock(mutex_);
  broken_ = fault;
  for (const std::deque<Piece>* const pieces : {&submitted_, &waiting_})
    for (const Piece& piece : *pieces) piece.operation->piece_is_over(fault);
  for (const Slot& slot : slots_)
    if (slot.piece.operation) slot.piece.operation->piece_is_over(fault);
}

void DiskService::remember(const DiskExtent& extent, std::int64_t at, const char* bytes, std::int64_t count) const {
  if (!checks_) return;
  std::uint64_t* const known = disk_checks(extent, at);
  for (std::int64_t i = 0; i < count / kDiskPage; ++i) known[i] = disk_check(bytes + i * kDiskPage);
}

std::optional<DiskFault> DiskService::verify(const DiskExtent& extent, std::int64_t at, const char* bytes,
                                             std::int64_t count) const {
  if (!checks_) return {};
  const std::uint64_t* const known = disk_checks(extent, at);
  for (std::int64_t i = 0; i < count / kDiskPage; ++i) {
    if (known[i] == 0 || known[i] == disk_check(bytes + i * kDiskPage)) continue;
    const StripedFiles::Spot spot = files_.spot(at + i * kDiskPage);
    return DiskFault{extent.whose + ": " + spot.file.bytes_at(spot.at, kDiskPage) + " are not what was written",
                     "the disk, its driver or the memory is at fault: go on from a checkpoint, on another disk"};
  }
  return {};
}

}  // namespace zero
