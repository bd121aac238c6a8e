#include "relay.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>

namespace cli {
namespace {

constexpr std::size_t kLongestLine = std::size_t{1} << 20;

// A reader that went away is reported by SIGPIPE, which the supervisor watches.
void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd polled{fd, POLLOUT, 0};
      ::poll(&polled, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

Relay::~Relay() {
  for (const Source& source : sources_)
    if (source.fd >= 0) ::close(source.fd);
}

int Relay::open(std::string prefix, int to) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  sources_.push_back({ends[0], to, std::move(prefix), {}});
  return ends[1];
}

void Relay::watch(std::vector<pollfd>& polled) const {
  for (const Source& source : sources_)
    if (source.fd >= 0) polled.push_back({source.fd, POLLIN, 0});
}

void Relay::emit(Source& source, std::size_t end) {
  std::string text;
  for (std::size_t begin = 0; begin < end;) {
    const std::size_t next = std::min(source.pending.find('\n', begin), end - 1) + 1;
    text += source.prefix;
    text.append(source.pending, begin, next - begin);
    begin = next;
  }
  if (!text.empty() && text.back() != '\n') text += '\n';
  source.pending.erase(0, end);
  write_all(source.to, text);
}

void Relay::drain(Source& source) {
  char buffer[65536];
  while (source.fd >= 0) {
    const ssize_t got = ::read(source.fd, buffer, sizeof buffer);
    if (got > 0) {
      source.pending.append(buffer, static_cast<std::size_t>(got));
      const std::size_t last = source.pending.rfind('\n');
      if (last != std::string::npos) emit(source, last + 1);
      if (source.pending.size() > kLongestLine) emit(source, source.pending.size());
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else if (got < 0 && errno == EAGAIN) {
      return;
    } else {
      ::close(source.fd);
      source.fd = -1;
      emit(source, source.pending.size());
    }
  }
}

void Relay::pump() {
  for (Source& source : sources_) drain(source);
}

void Relay::finish() {
  pump();
  for (Source& source : sources_) emit(source, source.pending.size());
}

}  // namespace cli
