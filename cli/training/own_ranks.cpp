#include "cli/training/own_ranks.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace cli {

std::shared_ptr<void> serve_store(int socket, int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.masterListenFd = socket;
  options.isServer = true;
  options.waitWorkers = false;
  return std::make_shared<c10d::TCPStore>("127.0.0.1", options);
}

Job own_ranks(std::vector<std::string> arguments, int ranks) {
  return {.program = "/proc/self/exe", .arguments = std::move(arguments), .ranks = ranks, .serve = serve_store};
}

}  // namespace cli
