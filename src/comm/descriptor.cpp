#include "comm/descriptor.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "zero/error.h"

namespace zero {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPatience = 100;  // ms between two looks whether the wait is still wanted

struct Address {
  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t length;
};

Descriptor local_socket() {
  Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) fail_sharing("no local socket");
  return fd;
}

void await_readable(int fd, std::chrono::milliseconds timeout, const StillWanted& still_wanted, const char* what) {
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    const int ready = poll(&entry, 1, kPatience);
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) fail_sharing("poll");
    still_wanted();
    if (Clock::now() < deadline) continue;
    errno = ETIMEDOUT;
    fail_sharing(what);
  }
}

bool same_user(int connection) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

// One byte, with a descriptor beside it.
struct Message {
  Message() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }

  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
};

void send_descriptor(int connection, int fd) {
  Message message;
  cmsghdr* const item = CMSG_FIRSTHDR(&message.header);
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = SCM_RIGHTS;
  item->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(item), &fd, sizeof fd);
  if (sendmsg(connection, &message.header, MSG_NOSIGNAL) != 1) fail_sharing("a rank did not take the memory");
}

}  // namespace

void fail_sharing(const std::string& what) {
  throw CommError("sharing memory with the ranks of this host: " + what + ": " + std::strerror(errno),
                  "ZERO_TRANSPORT=gloo does without shared memory");
}

std::string random_name(std::string prefix) {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) fail_sharing("no random numbers");
  for (const unsigned char byte : bytes) {
    prefix += "0123456789abcdef"[byte >> 4];
    prefix += "0123456789abcdef"[byte & 15];
  }
  return prefix;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Handout::Handout() : name_(random_name("zero-")), socket_(local_socket()) {
  const Address address(name_);
  if (bind(socket_.get(), address.get(), address.length) != 0 || listen(socket_.get(), SOMAXCONN) != 0)
    fail_sharing("a local socket cannot listen");
}

void Handout::give(int fd, int takers, std::chrono::milliseconds timeout, const StillWanted& still_wanted) const {
  const auto deadline = Clock::now() + timeout;
  while (takers > 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    await_readable(socket_.get(), left, still_wanted, "not all of them came");
    const Descriptor connection(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection || !same_user(connection.get())) continue;
    send_descriptor(connection.get(), fd);
    --takers;
  }
}

Descriptor fetch_descriptor(const std::string& name, std::chrono::milliseconds timeout,
                            const StillWanted& still_wanted) {
  const Descriptor connection = local_socket();
  const Address address(name);
  if (connect(connection.get(), address.get(), address.length) != 0) fail_sharing("the first of them does not answer");
  await_readable(connection.get(), timeout, still_wanted, "the first of them keeps silent");
  Message message;
  const bool received = recvmsg(connection.get(), &message.header, MSG_CMSG_CLOEXEC) == 1;
  const cmsghdr* const item = CMSG_FIRSTHDR(&message.header);
  if (!received || item == nullptr || item->cmsg_type != SCM_RIGHTS) {
    errno = ECONNRESET;
    fail_sharing("the first of them has gone");
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(item), sizeof fd);
  return Descriptor(fd);
}

}  // namespace zero
