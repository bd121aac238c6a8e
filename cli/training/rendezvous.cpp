#include "rendezvous.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "zero/error.h"

namespace cli {
namespace {

// A socket for others on this host only. The store takes it over and listens.
int bound_to_loopback(sockaddr_in& address) {
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const own = reinterpret_cast<sockaddr*>(&address);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && ::bind(fd, own, length) == 0 && ::getsockname(fd, own, &length) == 0) return fd;
  const std::string why = std::strerror(errno);
  if (fd >= 0) ::close(fd);
  throw zero::CommError("no port of the loopback interface: " + why);
}

}  // namespace

Rendezvous serve_rendezvous() {
  sockaddr_in address{};
  c10d::TCPStoreOptions options;
  options.masterListenFd = bound_to_loopback(address);
  options.port = ntohs(address.sin_port);
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = std::make_shared<c10d::TCPStore>("127.0.0.1", options);
  return {store, store->getPort()};
}

}  // namespace cli
