// The process that something was made in. One that is forked from it has its memory and none of its threads: what waits
// there for such a thread waits for ever.
#pragma once

#include <unistd.h>

#include <string>

#include "zero/error.h"

namespace zero {

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
