#include "state/pager.h"

#include "base/lap.h"

namespace zero {
namespace {

// Keeps the units of one operator from releasing each other.
class Together {
 public:
  Together(Residency& residency, std::span<Unit* const> units) : residency_(residency), units_(units) {
    for (const Unit* unit : units_) residency_.pin(unit->index());
  }
  ~Together() {
    for (const Unit* unit : units_) residency_.unpin(unit->index());
  }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;

 private:
  Residency& residency_;
  std::span<Unit* const> units_;
};

}  // namespace

Pager::Pager(std::vector<std::unique_ptr<Unit>>& units, Exchange& exchange, Residency residency,
             MicroBatch& micro_batch, std::shared_ptr<TrafficMeter> meter)
    : units_(units),
      exchange_(exchange),
      residency_(std::move(residency)),
      micro_batch_(micro_batch),
      meter_(std::move(meter)),
      pending_(units.size()),
      in_flight_(units.size()),
      pins_(units.size()) {}

void Pager::touch(std::span<Unit* const> units) {
  const Together together(residency_, units);
  for (Unit* unit : units) micro_batch_.touched(unit->index());
  for (Unit* unit : units) fetch(*unit);
  prefetch_after(*units.back());
}

void Pager::fetch(Unit& unit) {
  const int index = unit.index();
  if (in_flight_[static_cast<std::size_t>(index)]) settle(unit);
  if (!unit.sharded()) return;
  if (residency_.resident(index)) return residency_.touch(index);
  start_gather(unit, -1, /*exactly=*/false);
  settle(unit);
}

void Pager::settle_published(Unit& unit) {
  if (!unit.sharded() && in_flight_[static_cast<std::size_t>(unit.index())]) settle(unit);
}

void Pager::start_gather(Unit& unit, int keep, bool exactly) {
  for (const int other : residency_.admit(unit.index(), keep)) evict(other);
  const View full = room_for(unit);
  if (unit.common()) {
    for (const Hop& hop : unit.hops()) {
      const std::int64_t bytes = (exchange_.mesh().size(hop.axis) - 1) * hop.bytes;
      meter_->count(hop.collective, {.bytes = bytes, .in_place = bytes});
    }
    return expect(unit, renewed_);
  }
  const bool exact = exactly && !unit.gathered_exactly();
  expect(unit,
         exchange_.submit({.kind = Exchange::Kind::gather,
                           .unit = unit.index(),
                           .count = full.count,
                           .run = [&unit, full, exactly](const Groups& groups) { unit.gather(groups, full, exactly); },
                           .variant = exact ? Exchange::Variant::exact : Exchange::Variant::wired,
                           .axis = exchange_.gathers_along()}));
}

View Pager::room_for(Unit& unit) {
  try {
    return unit.make_room();
  } catch (...) {
    residency_.drop(unit.index());
    throw;
  }
}

void Pager::expect(Unit& unit, Pending pending) {
  const auto index = static_cast<std::size_t>(unit.index());
  pending_[index] = std::move(pending);
  in_flight_[index] = 1;
}

void Pager::settle(Unit& unit) {
  const auto index = static_cast<std::size_t>(unit.index());
  in_flight_[index] = 0;
  const Lap lap(waited_);
  std::optional<Acting> gathering;
  if (unit.common()) gathering.emplace(observer_, Activity::gather, unit.index());
  try {
    std::exchange(pending_[index], Pending()).wait();
  } catch (...) {
    if (unit.sharded()) evict(unit.index());
    throw;
  }
  unit.install();
}

void Pager::evict(int unit) {
  const auto index = static_cast<std::size_t>(unit);
  residency_.drop(unit);
  if (in_flight_[index]) {
    in_flight_[index] = 0;
    const Lap lap(waited_);
    try {
      std::exchange(pending_[index], Pending()).wait();
    } catch (const std::exception&) {
      // Nobody wants this unit any more; the exchange repeats the failure at its next operation.
    }
  }
  units_[index]->evict();
}

void Pager::prefetch_after(Unit& unit) {
  const int next = micro_batch_.predicted_next();
  if (next < 0 || next == unit.index()) return;
  Unit& other = *units_[static_cast<std::size_t>(next)];
  if (!other.sharded() || residency_.resident(next) || !residency_.fits_beside(unit.index(), next)) return;
  start_gather(other, unit.index(), /*exactly=*/false);
}

void Pager::forget() {
  for (const int unit : residency_.residents()) evict(unit);
}

void Pager::pin(Unit& unit) {
  if (pins_[static_cast<std::size_t>(unit.index())]++ > 0) return;
  residency_.pin(unit.index());
  try {
    fetch_exactly(unit);
    unit.privatise();
  } catch (...) {
    unpin(unit);
    throw;
  }
}

void Pager::unpin(Unit& unit) {
  if (--pins_[static_cast<std::size_t>(unit.index())] > 0) return;
  residency_.unpin(unit.index());
  unit.share();
  if (!unit.gathered_exactly()) discard(unit);
}

// For scopes that see and write what the shards hold.
void Pager::fetch_exactly(Unit& unit) {
  if (unit.gathered_exactly() || !unit.sharded()) return fetch(unit);
  if (residency_.resident(unit.index())) evict(unit.index());
  start_gather(unit, -1, /*exactly=*/true);
  settle(unit);
}

void Pager::discard(Unit& unit) {
  if (unit.sharded()) evict(unit.index());
}

}  // namespace zero
