// What belongs to a thread, and outlives it for those that have put something there: they may end on another one.
#pragma once

#include <memory>

namespace zero {

// One T a thread. Its own thread gets at it by here(), without owning it: also when the thread's own variables have
// ended, as those of the first thread have when static objects end.
template <class T>
class OfThread {
 public:
  // Of this thread, made by the first call.
  static const std::shared_ptr<T>& own() {
    thread_local const std::shared_ptr<T> owner = std::make_shared<T>();
    here_ = owner.get();
    return owner;
  }
  // Null before that.
  static T* here() { return here_; }

 private:
  static inline thread_local T* here_ = nullptr;
};

}  // namespace zero
