// The dispatcher's only door: a boxed fallback on a thread-local dispatch key that sees every operator
// of a thread before it runs, and asks the engines of the units among its arguments for their values.
#pragma once

#include "backwards/sees_thread.h"
#include "backwards/unwatched.h"

namespace zero {

// While it lives, the fallback sees the operators of the thread that made it (and of the autograd threads that inherit
// its keys). Counted: engines on one thread share it. It may end on any thread.
class Watch {
 public:
  Watch();
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  SeesThread<kWatchKey> sees_;
};

}  // namespace zero
