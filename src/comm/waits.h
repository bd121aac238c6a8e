// Whom ranks wait for, as they tell each other once that takes long: who waits in vain for a rank that waits itself can
// say whom for, and so names who really is absent.
#pragma once

#include <string>

namespace zero {

// Of the world's ranks, by their numbers in it. Thread-safe. This one knows nothing, for ranks that cannot tell.
class Waits {
 public:
  static constexpr int kLong = 4;  // a wait is long once one in so many parts of its time limit has passed

  Waits() = default;
  virtual ~Waits() = default;
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;

  // This rank waits for that one, until the same `wait` goes on. Null: a wait that has failed, of which that is true
  // until the rank waits long again.
  virtual void waits_for(int /*rank*/, const void* /*wait*/) {}
  virtual void goes_on(const void* /*wait*/) {}
  // What an error says behind a rank's name: ", which waits for rank 2 at 10.0.0.2,", or nothing.
  virtual std::string of(int /*rank*/) { return {}; }
};

}  // namespace zero
