#include "cli/processes/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "cli/processes/refusal.h"
#include "cli/processes/session.h"
#include "cli/processes/signals.h"
#include "zero/error.h"

namespace cli {
namespace {

using zero::Descriptor;

// A packet to the launcher begins with one of these: RankEnds follow, a signal's number, or the text of an error.
constexpr char kRankEnds = 'e';
constexpr char kSignal = 's';
constexpr char kError = 'f';
constexpr std::size_t kPacket = 1 << 16;
constexpr std::size_t kMostEnds = 4096;

void tell(int launcher, char kind, std::string_view content) {
  const std::string packet = kind + std::string(content.substr(0, kPacket - 1));
  ::send(launcher, packet.data(), packet.size(), MSG_NOSIGNAL);
}

template <class Value>
void append(std::string_view content, std::vector<Value>& values) {
  const std::size_t count = content.size() / sizeof(Value);
  values.resize(values.size() + count);
  std::memcpy(values.data() + values.size() - count, content.data(), count * sizeof(Value));
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_of(int rank, int ranks, const Orders& orders) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  variables.emplace("OMP_NUM_THREADS", "1");
  if (!orders.token.empty()) variables.emplace("ZERO_TOKEN", orders.token);
  const Nodes& nodes = orders.nodes;
  const bool alone = nodes.count == 1;
  for (const char* name : {"RANK", "ROLE_RANK"}) variables[name] = std::to_string(nodes.own * ranks + rank);
  for (const char* name : {"WORLD_SIZE", "ROLE_WORLD_SIZE"}) variables[name] = std::to_string(nodes.count * ranks);
  variables["LOCAL_RANK"] = std::to_string(rank);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(ranks);
  variables["GROUP_RANK"] = std::to_string(nodes.own);
  variables["GROUP_WORLD_SIZE"] = std::to_string(nodes.count);
  variables["MASTER_ADDR"] = alone ? "127.0.0.1" : nodes.address;
  variables["MASTER_PORT"] = std::to_string(alone ? orders.port : nodes.port);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = alone ? "True" : "False";
  variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(orders.restarts);
  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

// What one rank is started with; everything is prepared before the fork.
struct Start {
  const Orders& orders;
  const OwnSession& session;
  char* const* arguments;
  char* const* environment;
  pid_t parent;
  int input;
  RankOutput output;
  int report;
};

// Between fork and exec, where only async-signal-safe calls are allowed.
[[noreturn]] void become(const Start& start) {
  start.session.enter();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != start.parent) ::_exit(1);
  ::dup2(start.input, 0);
  ::dup2(start.output.output, 1);
  ::dup2(start.output.error, 2);
  ::setrlimit(RLIMIT_NOFILE, &start.orders.files);
  std::signal(SIGXFSZ, start.orders.file_size_signal);
  pthread_sigmask(SIG_SETMASK, &start.orders.mask, nullptr);
  ::execvpe(start.orders.program.c_str(), start.arguments, start.environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t told = ::write(start.report, &error, sizeof error);
  ::_exit(127);
}

// What the keeper does, in its own process.
class RankProcesses {
 public:
  RankProcesses(const Orders& orders, int launcher) : orders_(orders), launcher_(launcher) {}

  void start() {
    for (int rank = 0; rank < size(); ++rank) start(rank);
    let_go();
  }

  // Until the last rank has ended. False: the launcher has.
  bool tend() {
    while (!ranks_.empty()) {
      pollfd polled[] = {{launcher_, POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
      ::poll(polled, 2, -1);
      if (polled[0].revents && !obey()) return false;
      pass_on();
      collect();
    }
    return true;
  }

 private:
  int size() const { return static_cast<int>(orders_.outputs.size()); }
  std::string name(int rank) const { return "rank " + std::to_string(rank) + " of " + std::to_string(size()); }

  void start(int rank) {
    std::vector<std::string> arguments = orders_.arguments;
    if (!orders_.last_arguments.empty()) {
      const auto& last = orders_.last_arguments[static_cast<std::size_t>(rank)];
      arguments.insert(arguments.end(), last.begin(), last.end());
    }
    std::vector<std::string> environment = environment_of(rank, size(), orders_);
    const auto argv = pointers(arguments), envp = pointers(environment);
    const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    int report[2];
    if (!null || ::pipe2(report, O_CLOEXEC) != 0) refuse("cannot start " + name(rank), errno);
    const Descriptor read_end(report[0]);
    std::optional<Descriptor> write_end(report[1]);
    // What a rank, being in another session, read from a terminal, its foreground would miss.
    const int input = rank == 0 && !::isatty(0) ? 0 : null.get();
    const auto output = orders_.outputs[static_cast<std::size_t>(rank)];
    const Start start{orders_, session_, argv.data(), envp.data(), ::getpid(), input, output, report[1]};
    const pid_t pid = ::fork();
    if (pid < 0) refuse("cannot start " + name(rank), errno);
    if (pid == 0) become(start);
    ranks_[pid] = rank;
    write_end.reset();
    int error = 0;
    if (::read(read_end.get(), &error, sizeof error) == static_cast<ssize_t>(sizeof error))
      throw zero::Error("cannot start '" + orders_.program + "': " + std::strerror(error));
  }

  // Outputs are at their end when the ranks' are.
  void let_go() const {
    const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    for (const int standard : {0, 1, 2}) ::dup2(null.get(), standard);
    for (const auto& [output, error] : orders_.outputs)
      for (const int fd : {output, error})
        if (fd > 2) ::close(fd);
  }

  // What the launcher says. False: it has died, or wants an end.
  bool obey() const {
    int signal = 0;
    if (::recv(launcher_, &signal, sizeof signal, 0) != static_cast<ssize_t>(sizeof signal)) return false;
    for (const auto& [pid, rank] : ranks_) {
      ::kill(-pid, signal);
      ::kill(-pid, SIGCONT);
    }
    return true;
  }

  // Whoever sends this process a signal means the run. Before the ends of ranks that it may lead to.
  void pass_on() const {
    while (const auto signal = signals_.next())
      if (const int number = *signal; number != SIGCHLD)
        tell(launcher_, kSignal, {reinterpret_cast<const char*>(&number), sizeof number});
  }

  // The group of a rank is ended before its leader is waited for, while its number cannot be another's.
  void collect() {
    std::vector<RankEnd> ends;
    const auto tell_ends = [&] {
      tell(launcher_, kRankEnds, {reinterpret_cast<const char*>(ends.data()), ends.size() * sizeof(RankEnd)});
      ends.clear();
    };
    for (siginfo_t end{}; ::waitid(P_ALL, 0, &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid != 0; end = {}) {
      if (const auto found = ranks_.find(end.si_pid); found != ranks_.end()) {
        ::kill(-end.si_pid, SIGKILL);
        ends.push_back({found->second, end.si_code, end.si_status});
        ranks_.erase(found);
      }
      ::waitpid(end.si_pid, nullptr, 0);
      if (ends.size() == kMostEnds) tell_ends();
    }
    if (!ends.empty()) tell_ends();
  }

  const Orders& orders_;
  int launcher_;
  const OwnSession session_;
  Signals signals_{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
  std::map<pid_t, int> ranks_;
};

[[noreturn]] void keep(const Orders& orders, int launcher) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, "rank-keeper");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  bool orphaned = false;
  try {
    RankProcesses ranks(orders, launcher);
    ranks.start();
    orphaned = !ranks.tend();
  } catch (const std::exception& error) {
    tell(launcher, kError, error.what());
  }
  end_descendants();
  if (orphaned) ::kill(::getpid(), SIGKILL);
  ::_exit(0);
}

}  // namespace

bool RankEnd::failed() const {
  return how != CLD_EXITED || status != 0;
}

bool RankEnd::killed_by(int signal) const {
  return how != CLD_EXITED && status == signal;
}

Keeper::Keeper(const Orders& orders) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) refuse("cannot start ranks", errno);
  channel_ = Descriptor(ends[0]);
  const Descriptor theirs(ends[1]);
  process_ = ::fork();
  if (process_ < 0) refuse("cannot start ranks", errno);
  if (process_ > 0) return;
  channel_ = Descriptor();
  keep(orders, theirs.get());
}

Keeper::~Keeper() {
  if (process_ > 0) finish();
}

// Returns the signal that killed the keeper, or 0. Then this process is the reaper of what it has left.
int Keeper::finish() {
  channel_ = Descriptor();
  int status = 0;
  ::waitpid(std::exchange(process_, 0), &status, 0);
  done_ = true;
  if (!WIFSIGNALED(status)) return 0;
  end_descendants(before_);
  return WTERMSIG(status);
}

void Keeper::signal(int number) const {
  ::send(channel_.get(), &number, sizeof number, MSG_NOSIGNAL | MSG_DONTWAIT);
}

News Keeper::news() {
  News news;
  std::string packet(kPacket, '\0');
  for (;;) {
    const ssize_t got = ::recv(channel_.get(), packet.data(), packet.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return news;
    if (got <= 0) break;
    const std::string_view content(packet.data() + 1, static_cast<std::size_t>(got) - 1);
    if (packet.front() == kError) throw zero::Error(std::string(content));
    if (packet.front() == kSignal) {
      append(content, news.signals);
    } else {
      append(content, news.ends);
    }
  }
  if (const int signal = finish())
    throw zero::Error("the process that looks after the ranks was killed by signal " + std::to_string(signal) +
                      ", and the ranks with it");
  return news;
}

}  // namespace cli
