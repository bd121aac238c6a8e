#include "cli/processes/meeting.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>
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
  std::vector<zero::Descriptor> taken;
  while (taken.size() < needed) {
    zero::Descriptor one(::fcntl(like, F_DUPFD_CLOEXEC, 0));
    if (!one) {
      const int error = errno;
      taken.clear();
      refuse(kServe, error);
    }
    taken.push_back(std::move(one));
  }
}

}  // namespace

Meeting::Meeting(ServeStore serve)
    : serve_(serve), socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  if (!socket_) refuse(kOpen, errno);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const own = reinterpret_cast<sockaddr*>(&address);
  const int socket = socket_.get();
  if (::bind(socket, own, length) != 0 || ::getsockname(socket, own, &length) != 0 || ::listen(socket, SOMAXCONN) != 0)
    refuse(kOpen, errno);
  port_ = ntohs(address.sin_port);
}

void Meeting::watch(std::vector<pollfd>& polled) const {
  if (!store_) polled.push_back({socket_.get(), POLLIN, 0});
}

void Meeting::pump() {
  pollfd polled{socket_.get(), POLLIN, 0};
  if (store_ || ::poll(&polled, 1, 0) <= 0) return;
  require_descriptors(socket_.get());
  const int taken = ::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0);
  if (taken < 0) refuse(kServe, errno);
  try {
    store_ = serve_(taken, port_);
  } catch (const std::exception& error) {
    throw zero::Error(std::string(kServe) + ": " + error.what());
  }
}

}  // namespace cli
