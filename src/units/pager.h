// Pages parameters in when an operator uses them (design of ZeRO-3's on-demand gathering: a page fault
// gathers, a byte budget evicts, the order recorded in one micro-batch prefetches in the next). What is on another tier
// is read one step further ahead than it is gathered.
//
// Thread-safety: runs on the thread that runs forward and backward.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backwards/micro_batch.h"
#include "backwards/observer.h"
#include "comm/metered.h"
#include "partition/residency.h"
#include "units/exchange.h"
#include "units/unit.h"

namespace zero {

class Pager {
 public:
  // So many units are gathered ahead of their use. `meter` counts what is read where it lies.
  Pager(std::vector<std::unique_ptr<Unit>>& units, Exchange& exchange, Residency residency, int on_their_way,
        MicroBatch& micro_batch, std::shared_ptr<TrafficMeter> meter);

  // Makes the units readable, together; called before an operator that has them (at least one) as arguments.
  void acquire(std::span<Unit* const> units);
  // The unit's whole is on its way; the next acquire() waits for it.
  void expect(Unit& unit, Pending pending);
  // Every rank's part of the common units will be there when `pending` is complete.
  void expect_barrier(Pending pending) { barrier_ = std::move(pending); }
  void wait_for_barrier() { barrier_.wait(); }

  // Waits for a replicated unit's new values, if they are on their way.
  void wait_for_publication(Unit& unit);
  // Paged units have new values, or will have: forgets the old ones, but for what is kept whole until it has.
  void forget();
  // This one has, on all ranks, and, if `rewritten`, others altogether: what was kept of the old ones is forgotten,
  // too. Where no rank serves a gather between the first that comes here and the last.
  void outdate(Unit& unit, bool rewritten = false);
  // Ranks that share the unit's memory have all come here.
  void meet_in_common(const Unit& unit);
  // The same where ranks come at times of their own: they do it together. Collective where the plan keeps copies.
  void outdate_together(Unit& unit, bool rewritten);
  // Copies that differences are from become what the shards are: by unit, whether there is one. And there are none any
  // more. Collective where differences travel.
  std::vector<char> renew_bases();
  void drop_bases();

  // Keeps a unit resident for a gather scope, in which it may be written. Collective where units are gathered: who has
  // it serves those who have not.
  void pin(Unit& unit);
  void unpin(Unit& unit);
  bool pinned(const Unit& unit) const { return pages_[static_cast<std::size_t>(unit.index())].pins > 0; }

  // Hears of units that are read where they lie.
  void observe(std::weak_ptr<EngineObserver> observer) { observer_ = std::move(observer); }

  // Forgets what was written to a paged unit.
  void drop(Unit& unit);

  // Spent waiting for units since the last call.
  double take_seconds() { return std::exchange(waited_, 0.0); }

 private:
  struct Page {
    enum class Way : std::uint8_t { none, begun, in_flight };  // begun: with room, and not yet gathered
    Way way = Way::none;
    Pending pending = {};                 // of what is in flight
    std::shared_ptr<TierLoad> load = {};  // of what is read, until it is gathered or used
    int pins = 0;
  };

  Page& page(const Unit& unit) { return pages_[static_cast<std::size_t>(unit.index())]; }
  void fetch(Unit& unit);
  void fetch_exactly(Unit& unit);
  void meet(const Unit& unit);
  // Makes room for the unit, and has this rank's part of it read where that is on another tier.
  void begin(Unit& unit, int keep, bool exactly = false);
  void gather(Unit& unit, bool exactly);
  void count_in_place(const Unit& unit);
  void settle(Unit& unit);
  void bring_ahead(const Unit& unit);
  void with_bases(const std::function<void(const MeshGroups& groups)>& call);
  void evict(int unit);

  std::vector<std::unique_ptr<Unit>>& units_;
  Exchange& exchange_;
  Residency residency_;
  int on_their_way_;
  MicroBatch& micro_batch_;
  std::shared_ptr<TrafficMeter> meter_;
  Pending barrier_;
  std::vector<Page> pages_;  // by unit
  std::weak_ptr<EngineObserver> observer_;
  double waited_ = 0;
};

// A unit that is whole as long as this lives.
class Pinned {
 public:
  Pinned(Pager& pager, Unit& unit) : pager_(&pager), unit_(&unit) { pager_->pin(unit); }
  Pinned(Pinned&& other) noexcept : pager_(std::exchange(other.pager_, nullptr)), unit_(other.unit_) {}
  Pinned& operator=(Pinned&&) = delete;
  ~Pinned() {
    if (pager_ != nullptr) pager_->unpin(*unit_);
  }
  // It has come to its end whole.
  void forget() { pager_ = nullptr; }

 private:
  Pager* pager_;
  Unit* unit_;
};

}  // namespace zero
