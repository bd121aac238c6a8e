#include "base/lifetimes.h"

namespace zero {

std::shared_ptr<const int> Seats::take() {
  const std::lock_guard lock(mutex_);
  int number = 0;
  while (taken_.contains(number)) ++number;
  taken_.insert(number);
  return {new int(number), [seats = shared_from_this()](const int* seat) {
            const std::lock_guard inner(seats->mutex_);
            seats->taken_.erase(*seat);
            delete seat;
          }};
}

}  // namespace zero
