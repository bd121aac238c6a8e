#include "units/pager.h"

#include "base/timed_scope.h"
#include "units/for_unit.h"

namespace zero {
namespace {

// Keeps the units of one operator from releasing each other.
class PinnedTogether {
 public:
  PinnedTogether(Residency& residency, std::span<Unit* const> units) : residency_(residency), units_(units) {
    for (const Unit* unit : units_) residency_.pin(unit->index());
  }
  ~PinnedTogether() {
    for (const Unit* unit : units_) residency_.unpin(unit->index());
  }
  PinnedTogether(const PinnedTogether&) = delete;
  PinnedTogether& operator=(const PinnedTogether&) = delete;

 private:
  Residency& residency_;
  std::span<Unit* const> units_;
};

}  // namespace

Pager::Pager(std::vector<std::unique_ptr<Unit>>& units, Exchange& exchange, Residency residency, int on_their_way,
             MicroBatch& micro_batch, std::shared_ptr<TrafficMeter> meter)
    : units_(units),
      exchange_(exchange),
      residency_(std::move(residency)),
      on_their_way_(on_their_way),
      micro_batch_(micro_batch),
      meter_(std::move(meter)),
      pages_(units.size()) {}

void Pager::acquire(std::span<Unit* const> units) {
  const PinnedTogether together(residency_, units);
  for (Unit* unit : units) micro_batch_.touched(unit->index());
  for (Unit* unit : units) fetch(*unit);
  bring_ahead(*units.back());
}

void Pager::fetch(Unit& unit) {
  if (page(unit).way == Page::Way::in_flight) settle(unit);
  if (!unit.paged()) return;
  if (!residency_.resident(unit.index())) begin(unit, -1);
  residency_.touch(unit.index());
  if (page(unit).way != Page::Way::begun) return;
  gather(unit, /*exactly=*/false);
  settle(unit);
}

void Pager::wait_for_publication(Unit& unit) {
  if (!unit.paged() && page(unit).way == Page::Way::in_flight) settle(unit);
}

void Pager::begin(Unit& unit, int keep, bool exactly) {
  for (const int other : residency_.admit(unit.index(), keep)) evict(other);
  try {
    unit.make_room(exactly);
    page(unit).load = unit.bring();
  } catch (...) {
    evict(unit.index());
    throw;
  }
  page(unit).way = Page::Way::begun;
}

void Pager::gather(Unit& unit, bool exactly) {
  page(unit).way = Page::Way::none;
  if (!unit.gathers()) return expect(unit, {});
  if (unit.common()) {
    if (exchange_.of_this_process()) count_in_place(unit);
    return expect(unit, barrier_);
  }
  const bool exact = exactly && !unit.gathered_exactly();
  const View room = unit.room();
  expect(unit,
         exchange_.submit({.kind = Exchange::Kind::gather,
                           .unit = unit.index(),
                           .count = room.count,
                           .run =
                               [&unit, room, exactly, load = std::move(page(unit).load)](const MeshGroups& groups) {
                                 if (load) for_unit(unit, "the parameters", [&] { load->follow(); });
                                 unit.gather(groups, room, exactly);
                               },
                           .variant = exact ? Exchange::Variant::exact : Exchange::Variant::as_planned,
                           .axis = exchange_.gathers_along(),
                           .alone = micro_batch_.alone()}));
}

// Not in a forked process, where a thread that is not there may have the meter.
void Pager::count_in_place(const Unit& unit) {
  for (const Hop& hop : unit.whole_route().hops) {
    const std::int64_t bytes = (exchange_.mesh().size(hop.axis) - 1) * unit.whole_route().bytes(hop);
    meter_->count(hop.collective, {.bytes = bytes, .in_place = bytes});
  }
}

void Pager::expect(Unit& unit, Pending pending) {
  page(unit).pending = std::move(pending);
  page(unit).way = Page::Way::in_flight;
}

void Pager::settle(Unit& unit) {
  const TimedScope lap(waited_);
  std::optional<ActivityScope> gathering;
  if (unit.common() || (unit.paged() && !unit.gathers())) gathering.emplace(observer_, Activity::gather, unit.index());
  try {
    page(unit).pending.wait();
    if (const auto load = std::move(page(unit).load)) for_unit(unit, "the parameters", [&] { load->follow(); });
  } catch (...) {
    if (unit.paged()) evict(unit.index());
    throw;
  }
  page(unit).pending = {};
  page(unit).way = Page::Way::none;
  unit.install();
}

void Pager::evict(int unit) {
  residency_.drop(unit);
  Page& page = pages_[static_cast<std::size_t>(unit)];
  const Page::Way way = std::exchange(page.way, Page::Way::none);
  const TimedScope lap(waited_);
  page.load.reset();
  if (way == Page::Way::in_flight) {
    try {
      std::exchange(page.pending, Pending()).wait();
    } catch (const std::exception&) {
      // Nobody wants this unit any more; the exchange repeats the failure at its next operation.
    }
  }
  units_[static_cast<std::size_t>(unit)]->evict();
}

// The next units are gathered while this one is used, and those after them are read meanwhile. An evaluation may end
// sooner than was foreseen, on this rank alone: it reads ahead, and gathers with its peers what is used.
void Pager::bring_ahead(const Unit& unit) {
  if (!unit.paged()) return;
  const bool alone = micro_batch_.alone();
  if (alone && !unit.brings()) return;
  const Expected expected = micro_batch_.expected();
  int keep = unit.index(), many = 0;
  for (const int next : std::span(expected).first(residency_.ahead_of(keep, expected))) {
    Unit& other = *units_[static_cast<std::size_t>(next)];
    if (!residency_.resident(next)) begin(other, keep);
    if (!alone && ++many <= on_their_way_ && page(other).way == Page::Way::begun) gather(other, /*exactly=*/false);
    keep = next;
  }
}

void Pager::forget() {
  for (const int unit : residency_.residents())
    if (!units_[static_cast<std::size_t>(unit)]->keeps_whole()) evict(unit);
}

void Pager::outdate(Unit& unit, bool rewritten) {
  if (unit.keeps_whole() && !pinned(unit)) evict(unit.index());
  unit.outdate(rewritten);
}

void Pager::meet_in_common(const Unit& unit) {
  if (unit.shared()) exchange_.barrier(Exchange::Kind::read, unit.index()).wait();
}

void Pager::outdate_together(Unit& unit, bool rewritten) {
  if (!unit.keeps()) return;
  exchange_.run({.kind = Exchange::Kind::read,
                 .unit = unit.index(),
                 .run = [&unit, rewritten](const MeshGroups&) { unit.outdate(rewritten); },
                 .axis = exchange_.gathers_along(),
                 .lane = Exchange::Lane::control});
}

// Ranks that evaluate, or serve others, change them: so all come here first.
void Pager::with_bases(const std::function<void(const MeshGroups&)>& call) {
  if (std::ranges::none_of(units_, [](const auto& unit) { return unit->sends_differences(); })) return;
  exchange_.run({.kind = Exchange::Kind::read, .run = call});
}

std::vector<char> Pager::renew_bases() {
  std::vector<char> there(units_.size());
  with_bases([&](const MeshGroups& groups) {
    for (std::size_t i = 0; i < units_.size(); ++i) there[i] = units_[i]->renew_base(groups) ? 1 : 0;
  });
  return there;
}

void Pager::drop_bases() {
  with_bases([&](const MeshGroups&) {
    for (const auto& unit : units_) unit->drop_base();
  });
}

void Pager::pin(Unit& unit) {
  if (page(unit).pins++ > 0) return;
  residency_.pin(unit.index());
  try {
    fetch_exactly(unit);
    meet(unit);
    unit.privatise();
  } catch (...) {
    unpin(unit);
    throw;
  }
}

// Which units a rank has, it alone knows: it is not to go on, and to end, before its peers have gathered this one.
void Pager::meet(const Unit& unit) {
  if (unit.gathers() && !unit.common()) exchange_.meet(unit.index());
}

void Pager::unpin(Unit& unit) {
  if (--page(unit).pins > 0) return;
  residency_.unpin(unit.index());
  unit.share();
  if (!unit.gathered_exactly() || unit.keeps_whole()) drop(unit);
}

// For scopes that see and write what the shards hold.
void Pager::fetch_exactly(Unit& unit) {
  if (unit.gathered_exactly() || !unit.paged()) return fetch(unit);
  if (residency_.resident(unit.index())) evict(unit.index());
  begin(unit, -1, /*exactly=*/true);
  gather(unit, /*exactly=*/true);
  settle(unit);
}

void Pager::drop(Unit& unit) {
  if (unit.paged()) evict(unit.index());
}

}  // namespace zero
