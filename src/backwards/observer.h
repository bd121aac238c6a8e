// Who hears what an engine holds and does.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "zero/ledger.h"

namespace zero {

enum class Activity : std::uint8_t {
  forward,   // from the first parameter that an operator uses to backward, step or the end of an evaluation
  backward,  // of autograd
  step,
  gather,  // what follows on the exchange's thread, or where a unit is only pointed at
  reduce,
  publish,
  direct,
  vote,
  read,
  recompute,  // of an operator's results that had been dropped
  store,      // of an activation, as far as it is waited for
  fetch,
};
std::string_view name(Activity activity);

// Units are numbers of the layout; -1: none. Calls come from the engine's thread and its exchange's.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  // The engine's memory is there. Before anything else; may throw, which ends the attempt.
  virtual void begins(c10::Device device) { static_cast<void>(device); }
  // More is held, or less; all but activations. The caller holds a lock: no call of the engine from here.
  virtual void booked(Owner owner, int unit, std::int64_t change) = 0;
  // The memory that LibTorch's allocator gave at `data` is booked from now on.
  virtual void adopted(const void* data) = 0;
  // Returns what ended() is to be told, on the same thread.
  virtual int began(Activity activity, int unit) = 0;
  virtual void ended(int ticket) noexcept = 0;
};

// An activity as long as it lives. An observer that comes meanwhile does not hear of it.
class ActivityScope {
 public:
  ActivityScope(const std::weak_ptr<EngineObserver>& observer, Activity activity, int unit = -1)
      : observer_(observer.lock()) {
    if (observer_) ticket_ = observer_->began(activity, unit);
  }
  ~ActivityScope() {
    if (observer_) observer_->ended(ticket_);
  }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  std::shared_ptr<EngineObserver> observer_;
  int ticket_ = 0;
};

}  // namespace zero
