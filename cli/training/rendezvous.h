// The store at which ranks meet, served by this process.
#pragma once

#include <memory>

namespace cli {

// Serves this host until it is destroyed, on a port that the system chose when it was bound: no two can clash.
struct Rendezvous {
  std::shared_ptr<void> store;
  int port = 0;
};

Rendezvous serve_rendezvous();

}  // namespace cli
