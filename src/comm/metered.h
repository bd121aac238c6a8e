// A communicator that adds up calls, seconds and bytes: those that each call, once complete, says that it moved.
#pragma once

#include <memory>
#include <mutex>

#include "zero/traffic.h"

namespace zero {

// Thread-safe; several communicators may share one meter.
class TrafficMeter {
 public:
  Traffic snapshot() const;
  void reset();
  void count(Collective operation, const Moved& moved, double seconds = 0);

 private:
  mutable std::mutex mutex_;
  Traffic traffic_;
};

// `inner`, metered; groups split from it share the meter. A call is booked when its completion is first waited for.
std::shared_ptr<CommunicatorImpl> metered(std::shared_ptr<CommunicatorImpl> inner, std::shared_ptr<TrafficMeter> meter);

}  // namespace zero
