#include "update/delayed_update.h"

#include <algorithm>
#include <utility>

#include "base/elements.h"
#include "memory/tier_meter.h"
#include "units/for_unit.h"

namespace zero {

DelayedUpdate::DelayedUpdate(Updater& updater, std::unique_ptr<Store> memory, int units)
    : updater_(updater),
      memory_(std::move(memory)),
      parameters_(static_cast<std::size_t>(units)),
      known_(static_cast<std::size_t>(units)) {}

DelayedUpdate::~DelayedUpdate() {
  settle();
}

void DelayedUpdate::settle() const {
  try {
    if (done_) Pending(*done_).wait();
  } catch (...) {
    // take_over() tells of it, who wants it.
  }
}

void DelayedUpdate::begin(std::vector<UnitStep> steps) {
  std::ranges::sort(steps, std::ranges::greater(), [](const UnitStep& step) { return step.unit->index(); });
  for (UnitStep& step : steps) {
    make_room(step);
    step.parameters = &parameters_[static_cast<std::size_t>(step.unit->index())];
    if (updater_.states().follows(*step.unit)) continue;
    const TierMeter::SetupTraffic apart;
    copy(step, Access::read, &known_[static_cast<std::size_t>(step.unit->index())]);
  }
  steps_ = std::move(steps);
  read_ = 0;
  done_ = worker_.submit([this] { run(); });
}

void DelayedUpdate::make_room(const UnitStep& step) {
  Block& block = parameters_[static_cast<std::size_t>(step.unit->index())];
  if (block) return;
  block = memory_->take(updater_.states().length(*step.unit) * size_of(step.unit->layout().dtype()), Owner::parameter,
                        step.unit->index());
}

std::vector<Piece> DelayedUpdate::updated(const UnitStep& step) const {
  std::vector<Piece> pieces = updater_.states().pieces(*step.unit);
  std::erase_if(pieces, [&](const Piece& piece) { return !step.factors[static_cast<std::size_t>(piece.slot)]; });
  return pieces;
}

void DelayedUpdate::copy(const UnitStep& step, Access way, std::set<int>* known) {
  const std::int64_t size = size_of(step.unit->layout().dtype()), origin = updater_.states().origin(*step.unit);
  for_unit(*step.unit, "the parameters", [&] {
    for (const Piece& piece : updated(step)) {
      if (known != nullptr && known->contains(piece.slot)) continue;
      const BlockPart stored = step.unit->stored({piece.begin, piece.end - piece.begin}, way);
      const View here{at_element(step.parameters->view().data, (piece.begin - origin) * size, Dtype::u8), stored.bytes,
                      Dtype::u8};
      (way == Access::read ? stored.block->read(stored.at, here) : stored.block->write(stored.at, here)).wait();
      if (known != nullptr) known->insert(piece.slot);
    }
  });
}

// On the worker's thread. However it ends, nobody waits for gradients any more.
void DelayedUpdate::run() {
  struct AtEnd {
    DelayedUpdate& update;
    ~AtEnd() { update.mark_read(update.steps_.size()); }
  };
  const AtEnd at_end{*this};
  StagedPass passage = updater_.passage();
  for (std::size_t i = 0; i < steps_.size(); ++i) updater_.step(passage, steps_[i], [this, i] { mark_read(i + 1); });
  if (!steps_.empty()) updater_.finish(passage, *steps_.back().unit);
}

void DelayedUpdate::mark_read(std::size_t steps) {
  {
    const std::lock_guard lock(mutex_);
    read_ = std::max(read_, steps);
  }
  moved_.notify_all();
}

void DelayedUpdate::wait_for_gradient(int unit) {
  if (!done_) return;
  origin_.require("a delayed update cannot be waited for");
  const auto is = [unit](const UnitStep& step) { return step.unit->index() == unit; };
  const auto place = static_cast<std::size_t>(std::ranges::find_if(steps_, is) - steps_.begin());
  if (place == steps_.size()) return;
  std::unique_lock lock(mutex_);
  moved_.wait(lock, [&] { return read_ > place; });
}

void DelayedUpdate::take_over(const std::function<void(Unit&)>& written) {
  if (!done_) return;
  std::exchange(done_, std::nullopt)->wait();
  for (const UnitStep& step : std::exchange(steps_, {})) {
    copy(step, Access::write);
    written(*step.unit);
  }
}

}  // namespace zero
