// A communicator that counts calls and seconds, and accounts for bytes: those that a call of that size takes, whatever
// the transport did. The figures are those of zero/traffic.h.
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
  void count(Collective operation, std::int64_t bytes);
  void time(Collective operation, double seconds);

 private:
  mutable std::mutex mutex_;
  Traffic traffic_;
};

// What one rank of `size` receives in a call whose larger view has `bytes` bytes in elements of
// `element` bytes.
std::int64_t wire_bytes(Collective operation, std::int64_t bytes, std::int64_t element, int size);

// `inner`, metered; groups split from it share the meter. Calls and bytes are booked when a call has
// been accepted, seconds when its completion is first waited for.
std::shared_ptr<CommunicatorImpl> metered(std::shared_ptr<CommunicatorImpl> inner, std::shared_ptr<TrafficMeter> meter);

}  // namespace zero
