#include "cli/processes/meeting.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "cli/processes/refusal.h"
#include "zero/error.h"

namespace cli {
namespace {

constexpr const char* kOpen = "cannot open a port of the loopback interface, where the ranks meet";
constexpr const char* kServe = "cannot serve the store in which the ranks meet";

// Without those that it opens as it begins, c10d's store would try again for minutes.
void require_descriptors(int like) {
  constexpr std::size_t needed = 14;
  std::vector<int> taken;
  int error = 0;
  while (taken.size() < needed && error == 0) {
    const int one = ::fcntl(like, F_DUPFD_CLOEXEC, 0);
    if (one < 0) {
      error = errno;
    } else {
      taken.push_back(one);
    }
  }
  for (const int one : taken) ::close(one);
  if (error != 0) refuse(kServe, error);
}

}  // namespace

Meeting::Meeting(ServeStore serve)
    : serve_(serve), socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  if (socket_ < 0) refuse(kOpen, errno);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const own = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket_, own, length) != 0 || ::getsockname(socket_, own, &length) != 0 ||
      ::listen(socket_, SOMAXCONN) != 0) {
    const int error = errno;
    ::close(socket_);
    refuse(kOpen, error);
  }
  port_ = ntohs(address.sin_port);
}

Meeting::~Meeting() {
  if (socket_ >= 0) ::close(socket_);
}

void Meeting::watch(std::vector<pollfd>& polled) const {
  if (!store_) polled.push_back({socket_, POLLIN, 0});
}

void Meeting::pump() {
  pollfd polled{socket_, POLLIN, 0};
  if (store_ || ::poll(&polled, 1, 0) <= 0) return;
  require_descriptors(socket_);
  const int taken = ::fcntl(socket_, F_DUPFD_CLOEXEC, 0);
  if (taken < 0) refuse(kServe, errno);
  try {
    store_ = serve_(taken, port_);
  } catch (const std::exception& error) {
    throw zero::Error(std::string(kServe) + ": " + error.what());
  }
}

}  // namespace cli
