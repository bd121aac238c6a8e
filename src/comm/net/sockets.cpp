#include "comm/net/sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/system_files.h"

namespace zero {
namespace {

constexpr int kUnsent = 128 * 1024;  // bytes in the system above which it takes no more

void set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof value);  // what a socket does not have is no fault
}

msghdr message(std::span<const iovec> parts) {
  msghdr header{};
  header.msg_iov = const_cast<iovec*>(parts.data());
  header.msg_iovlen = parts.size();
  return header;
}

}  // namespace

std::ptrdiff_t Sockets::send(int socket, std::span<const iovec> parts) {
  const msghdr header = message(parts);
  return uninterrupted([&] { return sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT); });
}

std::ptrdiff_t Sockets::receive(int socket, std::span<const iovec> parts) {
  msghdr header = message(parts);
  return uninterrupted([&] { return recvmsg(socket, &header, MSG_DONTWAIT); });
}

Sockets& Sockets::of_system() {
  static Sockets sockets;
  return sockets;
}

void prepare_stream(int socket, std::chrono::milliseconds limit) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(limit).count();
  const int tries = 3;
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsent);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(std::clamp<std::int64_t>(seconds / 2, 1, 60)));
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(std::clamp<std::int64_t>(seconds / 2 / tries, 1, 20)));
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, tries);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::clamp<std::int64_t>(limit.count(), 1000, 1 << 30)));
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
}

}  // namespace zero
