#include "analysis/log.h"

#include <algorithm>

namespace zero {
namespace {

// Of a program that never ends a stretch: 8 MiB.
constexpr std::size_t kMostEvents = 1 << 18;
// Of a step of a small model: room that need not grow within it.
constexpr std::size_t kUsualEvents = 1 << 12;
constexpr std::size_t kMostNotices = 1 << 12;

// The operator of what is booked.
constexpr std::string_view kEngine = "zero::Engine";

std::vector<MemoryShare> largest_first(const std::map<std::string, std::int64_t>& bytes) {
  std::vector<MemoryShare> shares;
  for (const auto& [name, size] : bytes)
    if (size != 0) shares.push_back({name, size});
  std::ranges::stable_sort(shares, std::greater(), &MemoryShare::bytes);
  return shares;
}

}  // namespace

MemoryLog::MemoryLog() : start_(Clock::now()) {
  notices_.reserve(kMostNotices);
  events_.reserve(kUsualEvents);
  blocks_.reserve(kUsualEvents);
  free_.reserve(kUsualEvents);
}

std::uint32_t MemoryLog::add(const void* data, std::int64_t bytes) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(blocks_.size()));
    blocks_.emplace_back();
  }
  const std::uint32_t place = free_.back();
  free_.pop_back();
  Block& block = blocks_[place] = Block();
  block.data = data;
  block.number = ++numbers_;
  block.bytes = bytes;
  block.passes = passes_;
  places_.add(data, place);
  return place;
}

void MemoryLog::note(Kind kind, std::uint32_t place, std::int64_t change, double at) {
  allocated_ += change;
  events_.push_back({at, change, place, kind, tellings_ > 0});
  recent_peak_ = std::max(recent_peak_, allocated_);
  if (events_.size() >= kMostEvents) settle_noted();
}

void MemoryLog::notice(const Notice& notice) {
  notices_.push_back(notice);
  if (notices_.size() >= kMostNotices) catch_up();
}

void MemoryLog::catch_up() {
  for (const Notice& notice : notices_) {
    if (notice.bytes > 0) {
      see_come(notice);
    } else if (const auto found = places_.find(notice.data)) {
      remove(*found, notice.at);
    }
  }
  notices_.clear();
}

void MemoryLog::see_come(const Notice& notice) {
  if (const auto other = places_.find(notice.data)) remove(*other, notice.at);
  const std::uint32_t place = add(notice.data, notice.bytes);
  Block& block = blocks_[place];
  block.running = notice.origin.running;
  block.recorded = notice.origin.recorded;
  note(Kind::came, place, notice.bytes, notice.at);
}

int MemoryLog::number(std::string_view name) {
  const std::lock_guard lock(mutex_);
  return names_.number(name);
}

void MemoryLog::came(const void* data, std::int64_t bytes, const BlockOrigin& origin) {
  const std::lock_guard lock(mutex_);
  notice({now(), data, bytes, origin});
}

void MemoryLog::remove(std::uint32_t place, double at) {
  Block& block = blocks_[place];
  places_.remove(block.data);
  block.gone = true;
  block.reached = passes_ > block.passes;
  note(Kind::went, place, -block.bytes, at);
}

void MemoryLog::went(const void* data) {
  const std::lock_guard lock(mutex_);
  notice({now(), data, 0, {}});
}

void MemoryLog::went(const void* data, std::int64_t number) {
  const std::lock_guard lock(mutex_);
  catch_up();
  const auto found = places_.find(data);
  if (found && blocks_[*found].number == number) remove(*found, now());
}

void MemoryLog::backward_began() {
  const std::lock_guard lock(mutex_);
  catch_up();
  ++passes_;
}

void MemoryLog::booked(MemoryOwner owner, const std::string& unit, std::int64_t change) {
  const std::lock_guard lock(mutex_);
  catch_up();
  const int number = names_.number(unit);
  const auto [found, added] =
      account_places_.try_emplace({owner, number}, static_cast<std::uint32_t>(accounts_.size()));
  if (added) accounts_.push_back({owner, number});
  accounts_[found->second].bytes += change;
  note(Kind::booked, found->second, change, now());
}

std::int64_t MemoryLog::claim(const void* data, std::int64_t bytes, MemoryOwner owner, const std::string& unit) {
  const std::lock_guard lock(mutex_);
  catch_up();
  const auto known = places_.find(data);
  const std::uint32_t place = known ? *known : add(data, bytes);
  Block& block = blocks_[place];
  if (!block.fresh) {
    of(settled_, block.owner) -= block.bytes;
    of(settled_, owner) += block.bytes;
  }
  block.owner = owner;
  block.unit = names_.number(unit);
  block.claimed = true;
  claim_in_peak(block);
  const std::int64_t number = block.number;
  if (!known) note(Kind::came, place, bytes, now());
  return number;
}

void MemoryLog::claim_in_peak(const Block& block) {
  const auto part = std::ranges::lower_bound(peak_.parts, block.number, {}, &Peak::Part::number);
  if (part == peak_.parts.end() || part->number != block.number) return;
  part->owner = block.owner;
  part->unit = block.unit;
}

void MemoryLog::begin_telling() {
  const std::lock_guard lock(mutex_);
  catch_up();
  ++tellings_;
}

void MemoryLog::end_telling() {
  const std::lock_guard lock(mutex_);
  catch_up();
  --tellings_;
}

void MemoryLog::settle() {
  const std::lock_guard lock(mutex_);
  settle_locked();
}

void MemoryLog::settle_locked() {
  catch_up();
  settle_noted();
}

void MemoryLog::settle_noted() {
  decide();
  if (const auto moment = replay()) keep_peak(*moment);
  forget_events();
}

MemoryOwner MemoryLog::owner_of(const Block& block) const {
  if (block.claimed) return block.owner;
  const bool lives_on = !block.gone || block.reached;
  return block.recorded && lives_on ? MemoryOwner::activation : MemoryOwner::temporary;
}

void MemoryLog::decide() {
  for (const Event& event : events_)
    if (event.kind == Kind::came) blocks_[event.place].owner = owner_of(blocks_[event.place]);
}

void MemoryLog::apply(const Event& event) {
  const MemoryOwner owner = event.kind == Kind::booked ? accounts_[event.place].owner : blocks_[event.place].owner;
  of(settled_, owner) += event.change;
  settled_total_ += event.change;
}

// The moment at which there was more than ever before.
std::optional<MemoryLog::Moment> MemoryLog::replay() {
  std::optional<Moment> most;
  std::int64_t bytes = peak_.bytes;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    apply(events_[i]);
    const bool goes_on = events_[i].told && i + 1 < events_.size() && events_[i + 1].told;
    if (!goes_on) timeline_.add({events_[i].at, settled_total_, settled_});
    if (settled_total_ <= bytes) continue;
    bytes = settled_total_;
    most = Moment{i, bytes};
  }
  return most;
}

// What was there right after the event: what is there now, or went later, and came no later.
void MemoryLog::keep_peak(const Moment& moment) {
  const Event& event = events_[moment.event];
  peak_ = {moment.bytes, event.at, {}, {}};
  std::vector<char> absent(blocks_.size());
  for (const std::uint32_t place : free_) absent[place] = 1;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].kind == Kind::came && i > moment.event) absent[events_[i].place] = 1;
    if (events_[i].kind == Kind::went && i <= moment.event) absent[events_[i].place] = 1;
  }
  for (std::size_t place = 0; place < blocks_.size(); ++place) {
    const Block& block = blocks_[place];
    if (!absent[place]) peak_.parts.push_back({block.number, block.bytes, block.owner, block.unit, block.running});
  }
  peak_.running = event.kind == Kind::came ? blocks_[event.place].running : Running{names_.number(kEngine)};
  keep_accounts(moment.event);
  std::ranges::sort(peak_.parts, {}, &Peak::Part::number);
}

void MemoryLog::keep_accounts(std::size_t event) {
  std::vector<std::int64_t> bytes(accounts_.size());
  for (std::size_t i = 0; i < accounts_.size(); ++i) bytes[i] = accounts_[i].bytes;
  for (std::size_t i = event + 1; i < events_.size(); ++i)
    if (events_[i].kind == Kind::booked) bytes[events_[i].place] -= events_[i].change;
  for (std::size_t i = 0; i < accounts_.size(); ++i)
    peak_.parts.push_back({0, bytes[i], accounts_[i].owner, accounts_[i].unit, {names_.number(kEngine)}});
}

void MemoryLog::forget_events() {
  for (const Event& event : events_) {
    if (event.kind == Kind::came) blocks_[event.place].fresh = false;
    if (event.kind == Kind::went) free_.push_back(event.place);
  }
  events_.clear();
}

std::string MemoryLog::operator_name(const Running& running) const {
  const auto [operation, node] = running;
  if (operation == 0 || operation == node) return names_.name(node);
  return node == 0 ? names_.name(operation) : names_.name(operation) + " in " + names_.name(node);
}

MemoryPeak MemoryLog::peak() const {
  const std::lock_guard lock(mutex_);
  MemoryPeak peak{peak_.bytes, peak_.at, operator_name(peak_.running), {}, {}, {}};
  std::map<std::string, std::int64_t> units, operators;
  for (const Peak::Part& part : peak_.parts) {
    of(peak.owners, part.owner) += part.bytes;
    units[names_.name(part.unit)] += part.bytes;
    operators[operator_name(part.running)] += part.bytes;
  }
  peak.units = largest_first(units);
  peak.operators = largest_first(operators);
  return peak;
}

std::vector<MemorySample> MemoryLog::timeline() const {
  const std::lock_guard lock(mutex_);
  return timeline_.samples();
}

int MemoryLog::open() {
  const std::lock_guard lock(mutex_);
  tell_spans();
  spans_[next_span_] = {now(), 0, allocated_, 0, allocated_, {}};
  return next_span_++;
}

// Of the peak since one was opened or closed.
void MemoryLog::tell_spans() {
  catch_up();
  for (auto& [id, span] : spans_) span.peak = std::max(span.peak, recent_peak_);
  recent_peak_ = allocated_;
}

MemoryLog::Span MemoryLog::close_locked(int id) {
  tell_spans();
  const auto found = spans_.find(id);
  Span span = found->second;
  spans_.erase(found);
  span.end = now();
  span.last = allocated_;
  return span;
}

MemoryLog::Span MemoryLog::close(int span) {
  const std::lock_guard lock(mutex_);
  return close_locked(span);
}

MemoryLog::Span MemoryLog::settle_and_close(int id) {
  const std::lock_guard lock(mutex_);
  settle_locked();
  Span span = close_locked(id);
  span.owners = settled_;
  return span;
}

}  // namespace zero
