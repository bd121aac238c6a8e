// Signals as something to poll.
#pragma once

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <initializer_list>
#include <optional>

#include "cli/processes/refusal.h"

namespace cli {

// Those named, and SIGCHLD, while it lives. Those that the process was started to ignore stay ignored.
class Signals {
 public:
  explicit Signals(std::initializer_list<int> signals) {
    std::signal(SIGCHLD, SIG_DFL);
    sigset_t watched;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    for (int signal : signals)
      if (!ignored(signal)) sigaddset(&watched, signal);
    pthread_sigmask(SIG_BLOCK, &watched, &previous_);
    fd_ = ::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd_ < 0) refuse("cannot watch signals", errno);
  }
  ~Signals() {
    ::close(fd_);
    pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_; }
  const sigset_t& previous() const { return previous_; }
  std::optional<int> next() const {
    signalfd_siginfo info;
    if (::read(fd_, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return {};
    return static_cast<int>(info.ssi_signo);
  }

 private:
  static bool ignored(int signal) {
    struct sigaction action;
    return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
  }

  sigset_t previous_;
  int fd_ = -1;
};

}  // namespace cli
