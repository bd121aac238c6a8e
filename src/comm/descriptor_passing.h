// How one process gives a file descriptor to others of the same user: over a socket whose name, in the abstract
// namespace, leaves nothing behind however the processes end. Any process may use such a name, so both sides ask the
// kernel whose process the other is.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "base/system_files.h"

namespace zero {

// Throws a CommError about sharing memory, with the system's words for errno.
[[noreturn]] void fail_sharing(const std::string& what);

// Called now and then during a wait, and when the other end has gone; may throw to end it.
using StillWanted = std::function<void()>;

// Where a descriptor can be fetched, by any number of `user`'s processes, while the object lives.
class Handout {
 public:
  // A name that nobody else has. Throws CommError.
  explicit Handout(uid_t user = geteuid());

  const std::string& name() const { return name_; }
  // Gives `fd` to `takers` processes; other users' are turned away. Throws CommError when they do not come in time, or
  // when this process has no descriptor left to talk to them.
  void give(int fd, int takers, std::chrono::milliseconds timeout, const StillWanted& still_wanted) const;

 private:
  std::string name_;
  uid_t user_;
  Descriptor socket_;
};

// Throws CommError when nobody gives a descriptor under this name in time, or not a process of `user`.
Descriptor fetch_descriptor(const std::string& name, std::chrono::milliseconds timeout, const StillWanted& still_wanted,
                            uid_t user = geteuid());

}  // namespace zero
