#include "rendezvous.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace cli {

Rendezvous serve_rendezvous() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = std::make_shared<c10d::TCPStore>("127.0.0.1", options);
  return {store, store->getPort()};
}

}  // namespace cli
