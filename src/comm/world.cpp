#include "zero/world.h"

#include "base/seats.h"

namespace zero {

std::shared_ptr<Seats> World::new_seats() {
  return std::make_shared<Seats>();
}

std::shared_ptr<const int> World::take_seat() const {
  return seats_->take();
}

}  // namespace zero
