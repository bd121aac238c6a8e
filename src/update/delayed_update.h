// The update of a step on a thread of its own, beside the forward and backward of the next one: one-step delayed
// parameter update (ZeRO-Offload, section 5.2). It writes parameters apart from those that are computed with, unit by
// unit from the layout's end, as backward completes them: the next step's gradients take the place of those that it has
// read, so that there is no second copy of them.
//
// Thread-safety: one thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "base/lifetimes.h"
#include "base/worker.h"
#include "memory/store.h"
#include "update/updater.h"

namespace zero {

class DelayedUpdate {
 public:
  // `memory`: of parameters where updates are computed.
  DelayedUpdate(Updater& updater, std::unique_ptr<Store> memory, int units);
  ~DelayedUpdate();  // waits for what is under way, which is lost

  // Begins the steps of units, of each one at most, that have parameters in no other place than their own; their
  // gradients stay as they are until wait_for_gradient(). Nothing may be under way. Throws what take() of a store does,
  // or what reading parameters failed with; then nothing is.
  void begin(std::vector<UnitStep> steps);
  bool under_way() const { return done_.has_value(); }

  // Returns when it is done, however it ended.
  void settle() const;
  // Returns when nothing under way reads the unit's gradient any more.
  void wait_for_gradient(int unit);

  // Waits, writes what was updated to where the units have their parameters, and calls `written` for each of them.
  // Throws what the update failed with, or writing; then some of it is written and some is not.
  void take_over(const std::function<void(Unit&)>& written);

  // Somebody else has written a unit's parameters where it has them.
  void forget(const Unit& unit) { known_[static_cast<std::size_t>(unit.index())].clear(); }

 private:
  void make_room(const UnitStep& step);
  // What this rank updates in the step, parameter by parameter: the others are nobody's to write, and what the block
  // has in their place is not theirs.
  std::vector<Piece> updated(const UnitStep& step) const;
  // What is updated, from where the unit has it, but for parameters that are `known`, or to there. What an earlier step
  // left here is the unit's, unless somebody wrote it since.
  void copy(const UnitStep& step, Access way, std::set<int>* known = nullptr);
  void run();
  void mark_read(std::size_t steps);

  Updater& updater_;
  std::unique_ptr<Store> memory_;
  std::vector<Block> parameters_;     // by unit, empty before its first step
  std::vector<std::set<int>> known_;  // likewise: slots of whose parameters it has what the unit has
  std::vector<UnitStep> steps_;       // under way, in order
  ProcessOfOrigin origin_;
  std::mutex mutex_;
  std::condition_variable moved_;
  std::size_t read_ = 0;         // so many of them have read their gradients
  std::optional<Pending> done_;  // of what is under way
  Worker worker_;
};

}  // namespace zero
