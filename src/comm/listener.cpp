#include "comm/listener.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include "base/system_random.h"
#include "zero/error.h"

namespace zero {
namespace {

struct AddressDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, AddressDeleter>;
using Clock = std::chrono::steady_clock;

constexpr auto kPause = std::chrono::milliseconds(20);  // between tries

Addresses find_addresses(const std::string& host, int port, int type, int flags = 0) {
  addrinfo hints{};
  hints.ai_socktype = type;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error == 0) return Addresses(found);
  throw CommError("the host \"" + host + "\" is unknown: " + gai_strerror(error));
}

// A stream, or errno's value.
struct Tried {
  Descriptor stream;
  int error = 0;
};

// When a connection was taken by `end`.
Tried try_connecting(const addrinfo& peer, Clock::time_point end) {
  Descriptor fd(socket(peer.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return {Descriptor(), errno};
  if (connect(fd.get(), peer.ai_addr, peer.ai_addrlen) == 0) return {std::move(fd), 0};
  if (errno != EINPROGRESS) return {Descriptor(), errno};
  pollfd polled{fd.get(), POLLOUT, 0};
  poll_until(std::span(&polled, 1), end);
  if (polled.revents == 0) return {Descriptor(), ETIMEDOUT};
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  return {std::move(fd), error};
}

// Likewise, at one of the addresses, each of which has an equal share of the time.
Tried try_connecting(const Addresses& list, Clock::time_point end) {
  int left = 0;
  Tried tried{Descriptor(), EADDRNOTAVAIL};
  for (const addrinfo* peer = list.get(); peer; peer = peer->ai_next) ++left;
  for (const addrinfo* peer = list.get(); peer && tried.error != 0; peer = peer->ai_next, --left)
    tried = try_connecting(*peer, Clock::now() + (end - Clock::now()) / left);
  return tried;
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

std::string digits_of(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST];
  return getnameinfo(address, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0 ? host : "";
}

constexpr std::size_t kLongestEntry = 64;  // bytes of a file with a port

bool alive(pid_t process) {
  return kill(process, 0) == 0 || errno == EPERM;
}

bool ours(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == getuid();
}

bool write_all(const std::string& file, const std::string& text) {
  const Descriptor fd(open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  return fd && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
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
  throw CommError("there is no route to the host \"" + host + '"');
}

void await_listener(const std::string& host, int port, Clock::time_point deadline) {
  for (;;) {
    std::string reason;
    try {
      const int error = try_connecting(find_addresses(host, port, SOCK_STREAM), deadline).error;
      if (error == 0) return;
      reason = std::strerror(error);
    } catch (const CommError& unknown) {
      reason = unknown.what();
    }
    if (Clock::now() + kPause > deadline) throw CommError(reason);
    std::this_thread::sleep_for(kPause);
  }
}

Descriptor connect_to(const std::string& host, int port, Clock::time_point deadline) {
  Tried tried = try_connecting(find_addresses(host, port, SOCK_STREAM), deadline);
  if (tried.error != 0) throw CommError(std::strerror(tried.error));
  return std::move(tried.stream);
}

std::string address_of_peer(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  auto* const peer = reinterpret_cast<sockaddr*>(&address);
  const std::string digits = getpeername(socket, peer, &length) == 0 ? digits_of(peer, length) : "";
  return digits.empty() ? "an address unknown" : digits;
}

void poll_until(std::span<pollfd> polled, Clock::time_point end) {
  uninterrupted([&] {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    return poll(polled.data(), polled.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
  });
}

// One of IPv4 before others, whose addresses are no link's own.
std::string address_of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw CommError("the system does not list the network's interfaces");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owned(list, freeifaddrs);
  for (const auto& [family, bytes] : {std::pair{AF_INET, sizeof(sockaddr_in)}, {AF_INET6, sizeof(sockaddr_in6)}})
    for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family || name != each->ifa_name) continue;
      if (std::string own = digits_of(each->ifa_addr, static_cast<socklen_t>(bytes)); !own.empty()) return own;
    }
  throw CommError("the network interface \"" + name + "\" has no address");
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

// Written aside, under a name that nobody foresees, and renamed.
void publish_port(const std::string& file, int port) {
  const std::string draft = random_name(file + ".");
  const std::string text = std::to_string(port) + ' ' + std::to_string(getpid()) + '\n';
  if (write_all(draft, text) && rename(draft.c_str(), file.c_str()) == 0) return;
  const std::string why = std::strerror(errno);
  unlink(draft.c_str());
  throw CommError("rank 0: cannot write " + file + ": " + why,
                  "make the folder writable, or set MASTER_ADDR and MASTER_PORT");
}

int read_port(const std::string& file) {
  const Descriptor fd(open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd || !ours(fd.get())) return 0;
  std::array<char, kLongestEntry> text{};
  int port = 0;
  pid_t process = 0;
  if (read(fd.get(), text.data(), text.size() - 1) <= 0) return 0;
  return std::sscanf(text.data(), "%d %d", &port, &process) == 2 && alive(process) ? port : 0;
}

}  // namespace zero
