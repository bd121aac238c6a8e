#include "comm/descriptor_passing.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/system_random.h"
#include "zero/error.h"

namespace zero {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPatience = 100;  // ms between two looks whether the wait is still wanted
constexpr int kDying = 10;      // the same while a rank seems to die
constexpr std::chrono::seconds kDeath{5};

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

Descriptor local_socket(int flags = 0) {
  Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!fd) fail_sharing("no local socket");
  return fd;
}

class Wait {
 public:
  Wait(std::chrono::milliseconds timeout, const StillWanted& still_wanted)
      : deadline_(Clock::now() + timeout), still_wanted_(still_wanted) {}

  // Throws when the time is up, or whoever waits wants it no more.
  void check(const char* what) const {
    still_wanted_();
    if (Clock::now() < deadline_) return;
    errno = ETIMEDOUT;
    fail_sharing(what);
  }

  void until_readable(int fd, const char* what) const {
    for (;;) {
      pollfd entry{fd, POLLIN, 0};
      const int ready = poll(&entry, 1, kPatience);
      if (ready > 0) return;
      if (ready < 0 && errno != EINTR) fail_sharing("poll");
      check(what);
    }
  }

  // The other end has gone, with errno. Whoever waits may know more: a process that ends closes its sockets a moment
  // before it gives up the locks by which its death is known.
  [[noreturn]] void lose(const char* what) const {
    const int error = errno;
    const auto end = std::min(deadline_, Clock::now() + kDeath);
    do {
      still_wanted_();
      poll(nullptr, 0, kDying);
    } while (Clock::now() < end);
    errno = error;
    fail_sharing(what);
  }

 private:
  Clock::time_point deadline_;
  const StillWanted& still_wanted_;
};

// Whether the process at the other end was `user`'s when it connected, or began to listen.
bool belongs_to(uid_t user, int connection) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == user;
}

// Whether accept() failed for what became of one connection.
bool concerns_one_connection(int error) {
  return error == EAGAIN || error == EINTR || error == ECONNABORTED;
}

// A connection attempt blocks while too many others wait to be accepted.
void limit_connecting(int fd, std::chrono::milliseconds timeout) {
  const timeval time{timeout.count() / 1000, timeout.count() % 1000 * 1000};
  if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time) != 0) fail_sharing("no time limit for a connection");
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

bool send_descriptor(int connection, int fd) {
  Message message;
  cmsghdr* const item = CMSG_FIRSTHDR(&message.header);
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = SCM_RIGHTS;
  item->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(item), &fd, sizeof fd);
  return sendmsg(connection, &message.header, MSG_NOSIGNAL) == 1;
}

}  // namespace

void fail_sharing(const std::string& what) {
  throw CommError("sharing memory with the ranks of this host: " + what + ": " + std::strerror(errno),
                  "ZERO_TRANSPORT=tcp does without shared memory");
}

Handout::Handout(uid_t user) : name_(random_name("zero-")), user_(user), socket_(local_socket(SOCK_NONBLOCK)) {
  const Address address(name_);
  if (bind(socket_.get(), address.get(), address.length) != 0 || listen(socket_.get(), SOMAXCONN) != 0)
    fail_sharing("a local socket cannot listen");
}

void Handout::give(int fd, int takers, std::chrono::milliseconds timeout, const StillWanted& still_wanted) const {
  const Wait wait(timeout, still_wanted);
  const char* const missing = "not all of them came";
  while (takers > 0) {
    wait.until_readable(socket_.get(), missing);
    const Descriptor connection(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection && !concerns_one_connection(errno)) fail_sharing("one of them came and cannot be answered");
    if (connection && belongs_to(user_, connection.get())) {
      if (!send_descriptor(connection.get(), fd)) wait.lose("a rank did not take the memory");
      --takers;
    } else {
      wait.check(missing);
    }
  }
}

Descriptor fetch_descriptor(const std::string& name, std::chrono::milliseconds timeout, const StillWanted& still_wanted,
                            uid_t user) {
  const Wait wait(timeout, still_wanted);
  const Descriptor connection = local_socket();
  const Address address(name);
  limit_connecting(connection.get(), timeout);
  if (connect(connection.get(), address.get(), address.length) != 0) wait.lose("the first of them does not answer");
  if (!belongs_to(user, connection.get())) {
    errno = EPERM;
    fail_sharing("what is offered in the name of the first of them is another user's");
  }
  wait.until_readable(connection.get(), "the first of them keeps silent");
  Message message;
  const bool received = recvmsg(connection.get(), &message.header, MSG_CMSG_CLOEXEC) == 1;
  const cmsghdr* const item = CMSG_FIRSTHDR(&message.header);
  if (!received || item == nullptr || item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) {
    errno = ECONNRESET;
    wait.lose("the first of them has gone");
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(item), sizeof fd);
  return Descriptor(fd);
}

}  // namespace zero
