// The Unix session of a rank. The kernel's scheduler divides the cores between sessions first (sched_autogroup), and
// ranks that shared one would together get as much as one other program.
#pragma once

#include <string>

namespace cli {

// Made before a fork; in the new process enter() makes it the leader of a session of its own.
class OwnSession {
 public:
  OwnSession();
  // Only async-signal-safe calls. A new session's scheduling group starts at niceness 0, and a process's own niceness
  // counts within its group alone: the group is given what this process and its group have.
  void enter() const;

 private:
  void set_niceness() const;

  std::string niceness_;  // empty: 0
};

}  // namespace cli
