// Where the ranks of a job meet: a port of this host's loopback, ours from the beginning. What serves the store there
// needs LibTorch, so that it starts when the first rank comes; programs that do not meet need none.
#pragma once

#include <poll.h>

#include <memory>
#include <vector>

#include "base/system_files.h"

namespace cli {

// Serves a store at the socket, which listens at `port` and which it takes over, until the result is destroyed.
using ServeStore = std::shared_ptr<void> (*)(int socket, int port);

class Meeting {
 public:
  explicit Meeting(ServeStore serve);

  // Chosen by the system when it was bound: no two can clash.
  int port() const { return port_; }
  void watch(std::vector<pollfd>& polled) const;
  // Serves once somebody has come. Throws zero::Error, saying what it was for, when that cannot be.
  void pump();

 private:
  ServeStore serve_;
  int port_ = 0;
  std::shared_ptr<void> store_;
  zero::Descriptor socket_;
};

}  // namespace cli
