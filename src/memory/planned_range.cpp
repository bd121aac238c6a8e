#include "memory/planned_range.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

namespace zero {

AddressLots::AddressLots(char* begin, std::size_t bytes, std::size_t page)
    : begin_(begin), lot_(bytes / kLots / page * page) {}

std::size_t AddressLots::give(void* data) {
  const auto lot = static_cast<std::size_t>(static_cast<char*>(data) - begin_) / lot_;
  return ranges_[lot].load(std::memory_order_acquire)->give(data);
}

PlannedRange::PlannedRange(AddressLots& lots, std::size_t lot)
    : lots_(lots), lot_(lot), begin_(lots.begin_ + lot * lots.lot_) {}

PlannedRange* PlannedRange::of(AddressLots& lots) {
  for (std::size_t lot = 0; lot < AddressLots::kLots; ++lot) {
    if (lots.ranges_[lot].load(std::memory_order_relaxed) != nullptr) continue;
    auto* const range = new PlannedRange(lots, lot);
    PlannedRange* none = nullptr;
    if (lots.ranges_[lot].compare_exchange_strong(none, range, std::memory_order_acq_rel)) return range;
    delete range;
  }
  return nullptr;
}

// The last one out gives the pages back.
void PlannedRange::leave() {
  if (users_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (touched_ > 0) madvise(begin_, static_cast<std::size_t>(touched_), MADV_DONTNEED);
  lots_.held_ -= touched_;
  lots_.ranges_[lot_].store(nullptr, std::memory_order_release);
  delete this;
}

void PlannedRange::lay_out(std::shared_ptr<const BlockPlaces> places) {
  if (places == places_) return;
  lives_ = std::vector<std::atomic<bool>>(static_cast<std::size_t>(places->count()));
  occupant_ = std::vector<std::atomic<int>>(static_cast<std::size_t>(places->starts()));
  lots_.held_ += std::max<std::int64_t>(places->height() - touched_, 0);
  touched_ = std::max(touched_, places->height());
  places_ = std::move(places);
}

void* PlannedRange::place(int block) {
  const std::int64_t offset = places_->offset(block);
  if (offset < 0) return nullptr;
  for (const int each : places_->before(block))
    if (lives_[static_cast<std::size_t>(each)].load(std::memory_order_acquire)) return nullptr;
  lives_[static_cast<std::size_t>(block)].store(true, std::memory_order_relaxed);
  occupant_[static_cast<std::size_t>(places_->start(block))].store(block, std::memory_order_relaxed);
  users_.fetch_add(1, std::memory_order_relaxed);
  lots_.live_ += places_->bytes(block);
  return begin_ + offset;
}

std::size_t PlannedRange::give(const void* data) {
  const int start = places_->start_at(static_cast<const char*>(data) - begin_);
  const int block = occupant_[static_cast<std::size_t>(start)].load(std::memory_order_relaxed);
  const std::int64_t bytes = places_->bytes(block);
  lots_.live_ -= bytes;
  lives_[static_cast<std::size_t>(block)].store(false, std::memory_order_release);
  leave();
  return static_cast<std::size_t>(bytes);
}

}  // namespace zero
