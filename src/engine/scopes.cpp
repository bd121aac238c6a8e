// Gather scopes, as an engine sees them.
#include "engine/impl.h"
#include "memory/tier_meter.h"
#include "units/for_unit.h"
#include "zero/error.h"

namespace zero {

void Engine::Impl::hold(Unit& unit, std::optional<int> from_rank) {
  check_alive();
  told_.reset();
  const TierMeter::Apart apart;
  if (from_rank && (*from_rank < 0 || *from_rank >= exchange_.size()))
    throw ConfigError("zero::gather: there is no rank " + std::to_string(*from_rank) + " among " +
                      std::to_string(exchange_.size()));
  accounts_.explaining_memory("gathering parameters", [&] {
    catch_up("zero::gather");
    if (!pager_->pinned(unit)) renormalise();
    pager_->pin(unit);
  });
}

void Engine::Impl::let_go(Unit& unit) {
  pager_->unpin(unit);
}

void Engine::Impl::drop(Unit& unit, const Buffer& before) {
  unit.take_back(false);
  if (before) unit.write_full(before);
  let_go(unit);
  if (!before && !pager_->pinned(unit)) pager_->discard(unit);
}

void Engine::Impl::keep(Unit& unit, std::optional<int> from_rank) {
  const Exchange::Changing changing(exchange_);
  unit.take_back(true);
  told_.reset();
  const TierMeter::Apart apart;
  if (from_rank) {
    const View whole = unit.full();
    exchange_.run({Exchange::Kind::read, unit.index(), whole.count, [whole, root = *from_rank](const Groups& groups) {
                     groups.along(Axis::data).broadcast(whole, root).wait();
                   }});
  }
  meet(unit);
  const char* const before =
      std::exchange(broken_, "a gather scope's end failed halfway: some weights are not what was written");
  for_unit(unit, "what was written", [&] { unit.keep_full(updater_.staging()); });
  if (delayed_) delayed_->forget(unit);
  updater_.adopt(unit);
  broken_ = before;
  meet(unit);
}

// Before a common unit is written every rank has its copy, and every rank has written before it is read.
void Engine::Impl::meet(const Unit& unit) {
  if (!unit.common()) return;
  exchange_.run({Exchange::Kind::read, unit.index(), 0, barrier()});
}

}  // namespace zero
