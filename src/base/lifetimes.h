// What lives how long: numbers of what lives at the same time, what belongs to a thread and outlives it, and what
// belongs to the process that made it.
#pragma once

#include <unistd.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "zero/error.h"

namespace zero {

// Small numbers for what lives at the same time: each has the lowest that was free.
//
// Thread-safety: any thread.
class Seats : public std::enable_shared_from_this<Seats> {
 public:
  // The number, free again when nobody holds it any more.
  std::shared_ptr<const int> take();

 private:
  std::mutex mutex_;
  std::set<int> taken_;
};

// One T a thread, which outlives it for those that have put something there: they may end on another one. Its own
// thread gets at it by here(), without owning it: also when the thread's own variables have ended, as those of the
// first thread have when static objects end.
template <class T>
class ThreadShared {
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
  static inline thread_local T* here_ = nullptr;  // NOLINT(readability-identifier-naming): a member, not a variable
};

// The process that something was made in. One that is forked from it has its memory and none of its threads: what
// waits there for such a thread waits for ever.
class ProcessOfOrigin {
 public:
  bool here() const { return getpid() == process_; }
  // Throws StateError in another process, where `what` cannot be done.
  void require(const std::string& what) const {
    if (!here())
      throw StateError(what + " in a process that was forked: it has none of the threads that would do it",
                       "fork before zero::init(), spawn the process, or give it copies of what it needs; what is whole "
                       "on this rank when it is forked can be read there");
  }

 private:
  pid_t process_ = getpid();
};

}  // namespace zero
