// What adds up calls, seconds and bytes: those that each call, once complete, says that it moved.
#pragma once

#include <mutex>

#include "zero/traffic.h"

namespace zero {

// Thread-safe; several communicators may share one meter (comm/decorators.h).
class TrafficMeter {
 public:
  Traffic snapshot() const;
  void reset();
  // Of values, or of codes of them.
  void count(Collective operation, const Moved& moved, double seconds = 0, bool codes = false);

 private:
  mutable std::mutex mutex_;
  Traffic traffic_;
};

}  // namespace zero
