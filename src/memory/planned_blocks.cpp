#include "memory/planned_blocks.h"

#include <malloc.h>

#include <algorithm>
#include <utility>

namespace zero {
namespace {

// Micro-batches of other shapes that are remembered.
constexpr std::size_t kMostShapes = 8;
// What is kept longer has the range, and another one is taken.
constexpr int kMostBusy = 8;
// Below it, to look for what malloc has free is not worth it.
constexpr std::int64_t kWorthTrimming = std::int64_t{1} << 20;

}  // namespace

PlannedBlocks::~PlannedBlocks() {
  if (range_ != nullptr) range_->let_go();
}

void PlannedBlocks::begin() {
  learn();
  record_.clear();
  live_.clear();
  follow();
}

PlannedBlocks::Known* PlannedBlocks::known(std::uint64_t signature) {
  const auto found = std::ranges::find(known_, signature, &Known::signature);
  return found == known_.end() ? nullptr : &*found;
}

void PlannedBlocks::learn() {
  if (!record_.whole() || record_.blocks().empty()) return;
  const std::uint64_t now = record_.signature();
  if (latest_)
    if (Known* const before = known(*latest_)) before->next = now;
  latest_ = now;
  if (Known* const again = known(now)) {
    if (!again->places) plan(*again);
    std::rotate(known_.data(), again, again + 1);
    return;
  }
  known_.insert(known_.begin(), {now, now});
  if (known_.size() > kMostShapes) known_.pop_back();
}

// Its blocks came from malloc until now, which may keep what it had for them.
void PlannedBlocks::plan(Known& known) {
  known.places = std::make_shared<BlockPlaces>(record_.blocks());
  if (known.places->height() > kWorthTrimming) malloc_trim(0);
}

// What came after the latest before, else what came last of those with a plan.
std::shared_ptr<const BlockPlaces> PlannedBlocks::likeliest() {
  if (const Known* const before = latest_ ? known(*latest_) : nullptr)
    if (const Known* const next = known(before->next); next != nullptr && next->places) return next->places;
  const auto planned = std::ranges::find_if(known_, [](const Known& each) { return each.places != nullptr; });
  return planned == known_.end() ? nullptr : planned->places;
}

void PlannedBlocks::follow() {
  following_ = nullptr;
  const auto places = likeliest();
  if (!places || !has_range(*places)) return;
  range_->lay_out(places);
  following_ = places;
}

bool PlannedBlocks::has_range(const BlockPlaces& places) {
  if (places.height() == 0 || static_cast<std::size_t>(places.height()) > lots_.lot_bytes()) return false;
  if (range_ != nullptr && !range_->idle()) {
    if (++busy_ < kMostBusy) return false;
    std::exchange(range_, nullptr)->let_go();
  }
  busy_ = 0;
  if (range_ == nullptr) range_ = PlannedRange::of(lots_);
  return range_ != nullptr;
}

void* PlannedBlocks::take(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  next_ = record_.taken(static_cast<std::int64_t>(bytes));
  void* const data = following_ ? place(next_, static_cast<std::int64_t>(bytes)) : nullptr;
  if (data != nullptr) took(data);
  return data;
}

void* PlannedBlocks::place(int number, std::int64_t bytes) {
  const bool alike = number >= 0 && number < following_->count() && following_->bytes(number) == bytes;
  void* const data = alike ? range_->place(number) : nullptr;
  if (!alike || (data == nullptr && following_->offset(number) >= 0)) following_ = nullptr;
  return data;
}

void PlannedBlocks::took(void* data) {
  if (const int number = std::exchange(next_, -1); number >= 0) live_.insert_or_assign(data, number);
}

void PlannedBlocks::freed(const void* data) {
  const auto found = live_.find(data);
  if (found == live_.end()) return;
  record_.given(found->second);
  live_.erase(found);
}

}  // namespace zero
