#include "cli/processes/remote.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "cli/processes/refusal.h"
#include "cli/processes/signals.h"
#include "zero/error.h"

namespace cli {
namespace {

using zero::Descriptor;

constexpr std::string_view kGreeting = "zero orders 1";

constexpr std::array<std::string_view, 9> kPrefixes{"ZERO_", "OMP_",    "KMP_",  "MKL_",  "GLOO_",
                                                    "NCCL_", "ONEDNN_", "ATEN_", "TORCH_"};
constexpr std::array<std::string_view, 4> kNames{"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "TORCHELASTIC_RESTART_COUNT"};

// Whether a variable is one of the run's, which other hosts need too.
bool travels(const std::string& variable) {
  return std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return variable.starts_with(prefix); }) ||
         std::ranges::count(kNames, variable) > 0;
}

// Each text with a zero behind it, and an empty one last.
std::string greeting(const std::string& exported) {
  std::string text(kGreeting);
  text += '\0';
  for (char** entry = environ; *entry; ++entry) {
    const std::string variable = *entry, name = variable.substr(0, variable.find('='));
    if (travels(name) || ("," + exported + ",").find("," + name + ",") != std::string::npos) text += variable + '\0';
  }
  return text + '\0';
}

// Between fork and exec of a process that has one thread.
[[noreturn]] void become(const std::vector<std::string>& command, int input, const sigset_t& mask, pid_t parent,
                         void (*file_size_signal)(int)) {
  std::vector<std::string> words = command;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::setsid();  // signals come to it as orders alone
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::dup2(input, 0);
  std::signal(SIGXFSZ, file_size_signal);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  ::execvp(argv.front(), argv.data());
  ::dprintf(2, "zero: cannot start '%s': %s\n", argv.front(), std::strerror(errno));
  ::_exit(127);
}

// Writes what `fd` takes at once. What nobody reads any more is dropped: that the other end has gone is seen by its
// exit code.
void write_some(int fd, std::string& text) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EAGAIN) return;
    text.erase(0, wrote < 0 ? text.size() : static_cast<std::size_t>(wrote));
  }
}

// The next text; of standard input not a byte more is read. False: it has ended.
bool read_text(std::string& text) {
  text.clear();
  for (char c = 0;;) {
    const ssize_t got = ::read(0, &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    if (c == '\0') return true;
    text += c;
  }
}

[[noreturn]] void refuse_orders() {
  throw zero::ConfigError("launch --orders: standard input is not what zero launch --hosts writes",
                          "give --hosts where the run is started; the same zero must be on all hosts");
}

}  // namespace

int reach(const std::vector<std::string>& command, const std::string& exported, void (*file_size_signal)(int)) {
  const Signals signals{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) refuse("cannot reach a host", errno);
  std::optional<Descriptor> read_end(ends[0]);
  const Descriptor write_end(ends[1]);
  ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
  const pid_t self = ::getpid(), child = ::fork();
  if (child < 0) refuse("cannot reach a host", errno);
  if (child == 0) become(command, ends[0], signals.previous(), self, file_size_signal);
  read_end.reset();
  for (std::string text = greeting(exported);;) {
    write_some(ends[1], text);
    pollfd polled[] = {{signals.fd(), POLLIN, 0}, {ends[1], POLLOUT, 0}};
    ::poll(polled, text.empty() ? 1 : 2, -1);
    while (const auto signal = signals.next()) {
      int status = 0;
      if (*signal != SIGCHLD && *signal != SIGPIPE) {
        text += static_cast<char>(*signal);
      } else if (::waitpid(child, &status, WNOHANG) == child) {
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
    }
  }
}

Descriptor take_orders() {
  std::string text;
  if (::isatty(0) || !read_text(text) || text != kGreeting) refuse_orders();
  for (;;) {
    if (!read_text(text)) refuse_orders();
    if (text.empty()) break;
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) refuse_orders();
    ::setenv(text.substr(0, equals).c_str(), text.c_str() + equals + 1, 1);
  }
  Descriptor orders(::fcntl(0, F_DUPFD_CLOEXEC, 3));
  const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!orders || !null || ::dup2(null.get(), 0) != 0) refuse("cannot take orders", errno);
  return orders;
}

std::string quoted(const std::string& word) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace cli
