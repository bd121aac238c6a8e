#include "cli/processes/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <iostream>
#include <map>
#include <optional>
#include <utility>

#include "base/system_random.h"
#include "cli/exit_codes.h"
#include "cli/processes/keeper.h"
#include "cli/processes/killed_for_memory.h"
#include "cli/processes/refusal.h"
#include "cli/processes/relay.h"
#include "cli/processes/signals.h"
#include "zero/error.h"

namespace cli {
namespace {

using zero::Descriptor;

using Clock = std::chrono::steady_clock;

constexpr std::chrono::hours kBudgetPeriod(1);  // in which restarts are counted

constexpr const char* kOutOfMemory =
    ": the system was out of memory (start fewer ranks, let each hold less, or give them more; zero plan says what a "
    "model needs)";

std::string named(int signal) {
  return "signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
}

std::string describe(const RankEnd& end, const std::string& who) {
  if (end.how == CLD_EXITED) return who + " failed with exit code " + std::to_string(end.status);
  return who + " was killed by " + named(end.status);
}

// As many open files as the system allows us, while it lives: each rank takes four until all are started.
class ManyFiles {
 public:
  ManyFiles() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit most = before_;
    most.rlim_cur = most.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &most);
  }
  ~ManyFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  ManyFiles(const ManyFiles&) = delete;
  ManyFiles& operator=(const ManyFiles&) = delete;

  const rlimit& before() const { return before_; }

 private:
  rlimit before_{};
};

enum class Hearer { launcher, keeper };

class Ranks {
 public:
  // `start`: how often they were started before.
  Ranks(const Job& job, const Signals& signals, int start) : job_(job), signals_(signals), meeting_(job.serve) {
    begin(start);
  }

  // Until nothing is left of them.
  Outcome supervise() {
    while (!keeper_->done()) {
      wait_for_event();
      relay_.pump();
      meeting_.pump();
      tend();
      if (late() && !std::exchange(ending_.killed, true)) keeper_->signal(SIGKILL);
    }
    deliver();
    conclude();
    deliver();
    return outcome_;
  }

 private:
  // How the ranks are being ended.
  struct Ending {
    std::optional<Clock::time_point> deadline;  // then they are killed
    int sent = 0;                               // the last signal to them
    bool killed = false;                        // SIGKILL was
  };

  void begin(int start) {
    const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!null) refuse("cannot open /dev/null", errno);
    std::vector<Descriptor> pipes;
    Orders orders{job_.program,
                  job_.arguments,
                  job_.last_arguments,
                  {},
                  meeting_.port(),
                  start,
                  signals_.previous(),
                  job_.file_size_signal,
                  files_.before(),
                  job_.nodes,
                  job_.nodes.count == 1 ? zero::random_name("") : ""};
    for (int rank = 0; rank < job_.ranks; ++rank) {
      RankOutput output{job_.output == Output::quiet ? null.get() : 1, 2};
      if (job_.output == Output::prefixed || job_.output == Output::lines)
        for (int* const to : {&output.output, &output.error}) *to = pipes.emplace_back(open_pipe(rank, *to)).get();
      orders.outputs.push_back(output);
    }
    keeper_.emplace(orders);
  }

  Descriptor open_pipe(int rank, int to) {
    const std::string prefix = "[" + std::to_string(first_rank() + rank) + "] ";
    Descriptor pipe = relay_.open(job_.output == Output::lines ? "" : prefix, to);
    if (!pipe) refuse("cannot open the pipes of " + name_of(rank) + " of " + std::to_string(job_.ranks), errno);
    return pipe;
  }

  std::string name_of(int rank) const {
    if (!job_.names.empty()) return job_.names[static_cast<std::size_t>(rank)];
    return "rank " + std::to_string(first_rank() + rank);
  }

  int first_rank() const { return job_.nodes.own * job_.ranks; }

  bool late() const { return ending_.deadline && Clock::now() >= *ending_.deadline; }

  void wait_for_event() const {
    std::vector<pollfd> polled{{signals_.fd(), POLLIN, 0}};
    relay_.watch(polled);
    if (orders_ >= 0) polled.push_back({orders_, POLLIN, 0});
    if (!keeper_->done()) {
      polled.push_back({keeper_->fd(), POLLIN, 0});
      meeting_.watch(polled);
    }
    int timeout = -1;
    if (ending_.deadline && !ending_.killed) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*ending_.deadline - Clock::now());
      timeout = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
    }
    ::poll(polled.data(), polled.size(), timeout);
  }

  // Signals come first: a rank that ends because of one is no failure.
  void tend() {
    while (const auto signal = signals_.next()) hear(*signal, Hearer::launcher);
    obey();
    if (!keeper_->done()) {
      const News news = keeper_->news();
      for (const int signal : news.signals) hear(signal, Hearer::keeper);
      report(news.ends);
    }
    say_what_is_not_written();
  }

  void end_all(int signal, std::chrono::milliseconds patience) {
    ending_.sent = signal;
    if (!keeper_->done()) keeper_->signal(signal);
    const auto end = Clock::now() + patience;
    ending_.deadline = ending_.deadline ? std::min(*ending_.deadline, end) : end;
  }

  // One that both were sent, as when all processes of a job are, is one.
  void hear(int signal, Hearer hearer) {
    auto& [by_launcher, by_keeper] = heard_[signal];
    int& times = hearer == Hearer::launcher ? by_launcher : by_keeper;
    const int before = std::max(by_launcher, by_keeper);
    if (++times > before) handle(signal);
  }

  void obey() {
    for (pollfd polled{orders_, POLLIN, 0}; orders_ >= 0 && ::poll(&polled, 1, 0) > 0;) {
      char number = 0;
      const ssize_t got = ::read(orders_, &number, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) orders_ = -1;
      handle(got <= 0 ? SIGHUP : number);
    }
  }

  void handle(int signal) {
    if (signal == SIGCHLD) return;
    if (signal == SIGUSR1 || signal == SIGUSR2) {
      if (!keeper_->done()) keeper_->signal(signal);
      return;
    }
    if (signal == SIGPIPE) reader_left_ = true;
    const bool again = std::exchange(outcome_.told, true);
    if (outcome_.code == 0) outcome_.passed_on = signal;
    end_all(signal == SIGPIPE ? SIGTERM : signal, again ? job_.grace : job_.patience.value_or(job_.grace));
  }

  // Of several that ended since the last look, one that was killed is the cause, not the effect.
  void report(const std::vector<RankEnd>& ends) {
    const RankEnd* first = nullptr;
    for (const RankEnd& end : ends)
      if (meant(end))
        meant_ = end.status;
      else if (end.failed() && !(outcome_.passed_on && ended_by_us(end)))
        if (!first || (!was_killed(*first) && was_killed(end))) first = &end;
    if (!first || outcome_.code) return;
    outcome_.code = first->how == CLD_EXITED ? first->status : 128 + first->status;
    message_ = describe(*first, name_of(first->rank));
    if (killed_for_memory(*first)) message_ += kOutOfMemory;
    if (!ending_.deadline) end_all(SIGTERM, job_.grace);
    ending_.deadline = std::min(*ending_.deadline, Clock::now() + job_.grace);
  }

  // Or, of a launcher elsewhere, what it had started.
  bool was_killed(const RankEnd& end) const {
    return end.how != CLD_EXITED || (!job_.names.empty() && end.status > 128);
  }

  bool meant(const RankEnd& end) const {
    return end.how == CLD_EXITED && std::ranges::count(job_.meant, end.status) > 0;
  }

  bool ended_by_us(const RankEnd& end) const {
    const bool says_so = end.how == CLD_EXITED && end.status == 128 + ending_.sent;  // a shell, or a launcher
    return says_so || end.killed_by(ending_.sent) || (ending_.killed && end.killed_by(SIGKILL));
  }

  // A shell reports a command that was killed as an exit code of its own.
  bool killed_for_memory(const RankEnd& end) const {
    const bool killed = end.how == CLD_EXITED ? end.status == 128 + SIGKILL : end.status == SIGKILL;
    return killed && !ending_.killed && memory_.ran_out();
  }

  // Whatever the ranks do is worth more than what they say: they run on.
  void say_what_is_not_written() {
    constexpr std::array<const char*, 3> names{"", "standard output", "standard error"};
    for (const int to : {1, 2}) {
      const int error = relay_.error(to);
      if (error == 0 || unwritten_ || (error == EPIPE && reader_left_)) continue;
      unwritten_ = true;
      say(std::string("cannot write to ") + names[static_cast<std::size_t>(to)] + ": " + std::strerror(error) +
          "; what the ranks write there is lost");
    }
  }

  // When nothing is left that came from the ranks.
  void deliver() {
    while (!relay_.finish() && !late()) {
      wait_for_event();
      tend();
    }
    say_what_is_not_written();
  }

  void conclude() {
    const bool lost = late() && relay_.unwritten() > 0;
    if (outcome_.code == 0 && meant_ != 0) {
      outcome_ = {.code = meant_, .told = outcome_.told};
    } else if (const int signal = outcome_.passed_on) {
      message_ = "stopped by " + named(signal) + (message_.empty() ? "" : "; ") + message_;
      if (outcome_.code == 0) outcome_.code = 128 + signal;
    }
    if (!message_.empty()) say(message_);
    if (lost) say("what the ranks wrote last is lost: nobody read it within the grace period");
    if (outcome_.code == 0 && unwritten_) outcome_.code = 1;
  }

  void say(const std::string& text) { relay_.say(2, "zero: " + job_.context + text + '\n'); }

  const Job& job_;
  const Signals& signals_;
  const ManyFiles files_;
  const MemoryWatch memory_{job_.system};
  Relay relay_;
  Meeting meeting_;
  std::optional<Keeper> keeper_;
  std::map<int, std::pair<int, int>> heard_;  // how often the launcher, and the keeper, got a signal
  int meant_ = 0;                             // a rank's exit code
  Ending ending_;
  int orders_ = job_.orders;
  bool reader_left_ = false;  // as SIGPIPE says
  bool unwritten_ = false;    // output was lost
  std::string message_;
  Outcome outcome_;
};

}  // namespace

Outcome run_ranks(const Job& job) {
  std::cout.flush();
  const Signals signals{SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2};
  std::deque<Clock::time_point> restarts;
  for (int start = 0;; ++start) {
    const Outcome outcome = Ranks(job, signals, job.started_before + start).supervise();
    const bool failed = outcome.code != 0 && !outcome.told && std::ranges::count(job.meant, outcome.code) == 0 &&
                        std::ranges::count(job.hopeless, outcome.code) == 0;
    if (!failed || job.restarts == 0) return outcome;
    const auto now = Clock::now();
    while (!restarts.empty() && now - restarts.front() > kBudgetPeriod) restarts.pop_front();
    const bool left = restarts.size() < static_cast<std::size_t>(job.restarts);
    if (left) restarts.push_back(now);
    std::cerr << "zero: " << job.context
              << (left ? "all ranks are started again, restart "
                       : "they are not started again: restarts within an hour, ")
              << restarts.size() << " of " << job.restarts << std::endl;
    if (!left) return outcome;
  }
}

int exit_code(const Outcome& outcome) {
  if (outcome.code == 0) return 0;
  if (outcome.passed_on) return 128 + outcome.passed_on;
  return outcome.code == kUsage || outcome.code == kStopped ? outcome.code : kFailed;
}

}  // namespace cli
