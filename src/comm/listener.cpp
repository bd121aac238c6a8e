#include "comm/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "zero/error.h"

namespace zero {
namespace {

struct AddressDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, AddressDeleter>;

Addresses find_addresses(const std::string& host, int port, int type, int flags = 0) {
  addrinfo hints{};
  hints.ai_socktype = type;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error == 0) return Addresses(found);
  throw CommError("the host \"" + host + "\" is unknown: " + gai_strerror(error), "check MASTER_ADDR");
}

struct Own {
  std::string address;
  int port;
};

// What a socket is bound to.
Own own_address(int socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getsockname(socket, address, &length) != 0 ||
      getnameinfo(address, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {};
  return {host, std::stoi(port)};
}

}  // namespace

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

// Connecting a datagram socket sends nothing.
std::string address_towards(const std::string& host, int port) {
  const Addresses list = find_addresses(host, port, SOCK_DGRAM);
  for (const addrinfo* peer = list.get(); peer; peer = peer->ai_next) {
    const Descriptor fd(socket(peer->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd || connect(fd.get(), peer->ai_addr, peer->ai_addrlen) != 0) continue;
    if (std::string own = own_address(fd.get()).address; !own.empty()) return own;
  }
  throw CommError("no route to the host \"" + host + "\"", "check MASTER_ADDR and the network");
}

Listener bind_listener(const std::string& address, int port) {
  const Addresses place = find_addresses(address, port, SOCK_STREAM, AI_NUMERICHOST);
  Descriptor fd(socket(place->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!fd || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(fd.get(), place->ai_addr, place->ai_addrlen) != 0)
    throw CommError(std::strerror(errno));
  const int bound = own_address(fd.get()).port;
  return {std::move(fd), bound};
}

}  // namespace zero
