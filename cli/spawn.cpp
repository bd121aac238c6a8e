#include "spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "relay.h"
#include "zero/error.h"

namespace cli {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// Signals as something to poll, while it lives. Those that we were started to ignore stay ignored.
class Signals {
 public:
  Signals() {
    std::signal(SIGCHLD, SIG_DFL);
    sigset_t watched;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE})
      if (!ignored(signal)) sigaddset(&watched, signal);
    pthread_sigmask(SIG_BLOCK, &watched, &previous_);
    fd_ = ::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd_ < 0) fail("signalfd");
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

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_of(int rank, int ranks, int port) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  variables.emplace("OMP_NUM_THREADS", "1");
  for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) variables[name] = std::to_string(rank);
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"})
    variables[name] = std::to_string(ranks);
  variables["GROUP_RANK"] = "0";
  variables["GROUP_WORLD_SIZE"] = "1";
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(port);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables["TORCHELASTIC_RESTART_COUNT"] = "0";
  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

std::string describe(int rank, const siginfo_t& end) {
  const std::string who = "rank " + std::to_string(rank);
  if (end.si_code == CLD_EXITED) return who + " failed with exit code " + std::to_string(end.si_status);
  return who + " was killed by signal " + std::to_string(end.si_status) + " (" + ::strsignal(end.si_status) + ")";
}

// What a rank is started with; everything is prepared before the fork.
struct Start {
  const char* program;
  char* const* arguments;
  char* const* environment;
  const sigset_t* mask;
  pid_t parent;
  int input, output, error, report;
};

// Between fork and exec, where only async-signal-safe calls are allowed.
[[noreturn]] void become(const Start& start) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != start.parent) ::_exit(1);
  ::dup2(start.input, 0);
  ::dup2(start.output, 1);
  ::dup2(start.error, 2);
  pthread_sigmask(SIG_SETMASK, start.mask, nullptr);
  ::execvpe(start.program, start.arguments, start.environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t told = ::write(start.report, &error, sizeof error);
  ::_exit(127);
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {
    if (fd < 0) fail("open");
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

class Ranks {
 public:
  Ranks(const Job& job, const Signals& signals) : job_(job), signals_(signals), meeting_(job.serve) {}
  ~Ranks() {
    signal_all(SIGKILL);
    for (pid_t pid : pids_)
      if (pid > 0) ::waitpid(pid, nullptr, 0);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void start() {
    for (int rank = 0; rank < job_.ranks; ++rank) start(rank);
  }

  Outcome supervise() {
    while (running()) {
      wait_for_event();
      relay_.pump();
      meeting_.pump();
      while (const auto signal = signals_.next()) handle(*signal);
      if (deadline_ && Clock::now() >= *deadline_) signal_all(SIGKILL);
    }
    relay_.finish();
    return outcome_;
  }

 private:
  int output_of(int rank, int fd) {
    return job_.output == Output::prefixed ? relay_.open("[" + std::to_string(rank) + "] ", fd)
                                           : ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  }

  void start(int rank) {
    std::vector<std::string> arguments = job_.arguments;
    std::vector<std::string> environment = environment_of(rank, job_.ranks, meeting_.port());
    const auto argv = pointers(arguments), envp = pointers(environment);
    const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    const Descriptor out(output_of(rank, 1)), error(output_of(rank, 2));
    // In the background of a terminal, reading from it would stop the rank.
    const int input = rank == 0 && !::isatty(0) ? 0 : null.fd();
    int report[2];
    if (::pipe2(report, O_CLOEXEC) != 0) fail("pipe");
    const Descriptor read_end(report[0]);
    std::optional<Descriptor> write_end(report[1]);
    const Start start{job_.program.c_str(),
                      argv.data(),
                      envp.data(),
                      &signals_.previous(),
                      ::getpid(),
                      input,
                      job_.output == Output::quiet ? null.fd() : out.fd(),
                      error.fd(),
                      report[1]};
    const pid_t pid = ::fork();
    if (pid < 0) fail("fork");
    if (pid == 0) become(start);
    pids_.push_back(pid);
    ::setpgid(pid, pid);
    write_end.reset();
    check_started(read_end.fd());
  }

  void check_started(int report) const {
    int error = 0;
    if (::read(report, &error, sizeof error) != static_cast<ssize_t>(sizeof error)) return;
    throw zero::Error("cannot start '" + job_.program + "': " + std::strerror(error));
  }

  bool running() const {
    return std::any_of(pids_.begin(), pids_.end(), [](pid_t pid) { return pid > 0; });
  }

  void wait_for_event() const {
    std::vector<pollfd> polled{{signals_.fd(), POLLIN, 0}};
    relay_.watch(polled);
    meeting_.watch(polled);
    int timeout = -1;
    if (deadline_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
      timeout = static_cast<int>(std::max<std::int64_t>(left.count(), 1));
    }
    ::poll(polled.data(), polled.size(), timeout);
  }

  void signal_all(int signal) const {
    for (pid_t pid : pids_)
      if (pid > 0) ::kill(-pid, signal);
  }

  void end_all(int signal) {
    signal_all(signal);
    if (!deadline_) deadline_ = Clock::now() + job_.grace;
  }

  void handle(int signal) {
    if (signal == SIGCHLD) return collect();
    outcome_.passed_on = signal;
    end_all(signal == SIGPIPE ? SIGTERM : signal);
  }

  // Of several that ended since the last look, one that was killed is the cause, not the effect.
  void collect() {
    std::optional<std::pair<int, siginfo_t>> first;
    for (int rank = 0; rank < job_.ranks; ++rank) {
      const auto end = collect(pids_[static_cast<std::size_t>(rank)]);
      if (!end || (end->si_code == CLD_EXITED && end->si_status == 0)) continue;
      if (!first || (first->second.si_code == CLD_EXITED && end->si_code != CLD_EXITED)) first = {rank, *end};
    }
    if (first && outcome_.code == 0) report(first->first, first->second);
  }

  // The group is ended before its leader is waited for, while its number cannot be another's.
  static std::optional<siginfo_t> collect(pid_t& pid) {
    siginfo_t end{};
    if (pid <= 0 || ::waitid(P_PID, static_cast<id_t>(pid), &end, WEXITED | WNOHANG | WNOWAIT) != 0) return {};
    if (end.si_pid != pid) return {};
    ::kill(-pid, SIGKILL);
    ::waitpid(std::exchange(pid, 0), nullptr, 0);
    return end;
  }

  void report(int rank, const siginfo_t& end) {
    outcome_.code = end.si_code == CLD_EXITED ? end.si_status : 128 + end.si_status;
    outcome_.message = describe(rank, end);
    if (!deadline_) end_all(SIGTERM);
  }

  const Job& job_;
  const Signals& signals_;
  Relay relay_;
  Meeting meeting_;
  std::vector<pid_t> pids_;
  std::optional<Clock::time_point> deadline_;
  Outcome outcome_;
};

}  // namespace

Outcome run_ranks(const Job& job) {
  std::cout.flush();
  const Signals signals;
  Ranks ranks(job, signals);
  ranks.start();
  return ranks.supervise();
}

int exit_code(const Outcome& outcome, const std::string& context) {
  if (outcome.code == 0) return 0;
  if (const int signal = outcome.passed_on) {
    std::cerr << "zero: " << context << "stopped by signal " << signal << " (" << ::strsignal(signal) << ")\n";
    return 128 + signal;
  }
  std::cerr << "zero: " << context << outcome.message << '\n';
  return outcome.code == 2 ? 2 : 1;
}

}  // namespace cli
