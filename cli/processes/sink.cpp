#include "cli/processes/sink.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace cli {

Sink::Sink(int fd) : fd_(fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return;
  socket_ = S_ISSOCK(info.st_mode);
  const bool writable = (::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
  if (writable && (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)))
    own_ = zero::Descriptor(
        ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

void Sink::put(std::string_view text) {
  if (error_ == EPIPE) return;
  text_.erase(0, written_);
  written_ = 0;
  text_ += text;
}

void Sink::watch(std::vector<pollfd>& polled) const {
  if (waiting() > 0) polled.push_back({own_ ? own_.get() : fd_, POLLOUT, 0});
}

// A pipe that cannot be opened again, being another user's, takes PIPE_BUF bytes when it is ready at all.
ssize_t Sink::write_some() {
  const char* const text = text_.data() + written_;
  if (own_) return ::write(own_.get(), text, waiting());
  if (socket_) return ::send(fd_, text, waiting(), MSG_DONTWAIT);
  pollfd ready{fd_, POLLOUT, 0};
  if (::poll(&ready, 1, 0) > 0) return ::write(fd_, text, std::min<std::size_t>(waiting(), PIPE_BUF));
  errno = EAGAIN;
  return -1;
}

void Sink::fail(int error) {
  if (error_ == 0 || error == EPIPE) error_ = error;
  text_.clear();
  written_ = 0;
}

void Sink::pump() {
  while (waiting() > 0) {
    const ssize_t count = write_some();
    if (count >= 0) {
      written_ += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      return fail(errno);
    }
  }
  text_.clear();
  written_ = 0;
}

}  // namespace cli
