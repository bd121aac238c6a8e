// The processes that come from this one.
#pragma once

#include <sys/types.h>

#include <vector>

namespace cli {

// While it lives, processes that come from this one and lose their parent become children of this one, whatever
// session or process group they are in.
class Reaper {
 public:
  Reaper();
  ~Reaper();
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

 private:
  int before_ = 0;
};

std::vector<pid_t> children();

// Kills and waits for the children of this process but `spared`, then for what these leave to it, until nobody is left.
// Those that it may not kill, being another user's, it leaves alone.
void end_descendants(const std::vector<pid_t>& spared = {});

}  // namespace cli
