// `zero launch` on a terminal: its ranks have Unix sessions of their own, and what a terminal does to a command is done
// to them all the same.
#include <pty.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "procs/nothing_stays.h"

namespace terminal_test {

using procs::contains;
using procs::Folder;
using procs::NothingStays;
using procs::Program;
using procs::Variables;
using procs::Words;
using procs::zero;

// A command as the leader of the session of a new terminal, in its foreground.
class Terminal {
 public:
  Terminal(Words command, const Variables& variables) {
    std::vector<std::string> environment = Program::with_ours(variables);
    const auto argv = Program::pointers(command), envp = Program::pointers(environment);
    command_ = ::forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (command_ != 0) return;
    for (const int each : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGTSTP}) ::signal(each, SIG_DFL);
    const rlimit no_core{};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::execvpe(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  ~Terminal() {
    if (command_ > 0) ::kill(command_, SIGKILL), ::waitpid(command_, nullptr, 0);
    hang_up();
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  pid_t command() const { return command_; }
  const std::string& text() const { return text_; }

  // Reads until `part` was shown so often, or nothing more will be.
  bool shows(const std::string& part, int times = 1) {
    const auto shown = [&] {
      int count = 0;
      for (std::size_t at = 0; (at = text_.find(part, at)) != text_.npos; at += part.size()) ++count;
      return count;
    };
    while (shown() < times && read_some()) continue;
    return shown() >= times;
  }
  void type(const std::string& keys) const { EXPECT_EQ(::write(terminal_, keys.data(), keys.size()), keys.size()); }
  void hang_up() {
    if (terminal_ >= 0) ::close(std::exchange(terminal_, -1));
  }

  // The exit code, or minus the signal.
  int end() {
    while (terminal_ >= 0 && read_some()) continue;
    int status = 0;
    ::waitpid(std::exchange(command_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  bool read_some() {
    char buffer[4096];
    const ssize_t got = ::read(terminal_, buffer, sizeof buffer);
    if (got > 0) text_.append(buffer, static_cast<std::size_t>(got));
    return got > 0;
  }

  int terminal_ = -1;
  pid_t command_ = 0;
  std::string text_;
};

class OnATerminal : public NothingStays {
 protected:
  static Words two_ranks(const std::string& script) { return zero({"launch", "-n", "2", "sh", "-c", script}); }
};

const std::string kWaits = "echo ready; sleep 3600 & wait";

TEST_F(OnATerminal, AnInterruptEndsTheRanks) {
  Terminal terminal(two_ranks("trap 'echo told; exit 0' INT; " + kWaits), variables());
  ASSERT_TRUE(terminal.shows("ready", 2)) << terminal.text();
  terminal.type("\x03");
  EXPECT_EQ(terminal.end(), 128 + SIGINT);
  EXPECT_TRUE(terminal.shows("told", 2)) << terminal.text();
  EXPECT_TRUE(terminal.shows("zero: stopped by signal 2 (Interrupt)")) << terminal.text();
}

TEST_F(OnATerminal, QuitTakesTheRanksAlong) {
  Terminal terminal(two_ranks("trap '' QUIT; " + kWaits), variables());
  ASSERT_TRUE(terminal.shows("ready", 2)) << terminal.text();
  terminal.type("\x1c");
  EXPECT_EQ(terminal.end(), -SIGQUIT);
}

TEST_F(OnATerminal, RanksEndWhenItIsClosed) {
  Terminal terminal(two_ranks(kWaits), variables());
  ASSERT_TRUE(terminal.shows("ready", 2)) << terminal.text();
  terminal.hang_up();
  EXPECT_EQ(terminal.end(), 128 + SIGHUP);
}

TEST_F(OnATerminal, RanksReadNothingOfIt) {
  Terminal terminal(two_ranks("cat; echo read; (: </dev/tty) 2>/dev/null || echo none"), variables());
  EXPECT_EQ(terminal.end(), 0);
  EXPECT_TRUE(terminal.shows("read", 2) && terminal.shows("none", 2)) << terminal.text();
}

// The shell has the terminal while the launcher is stopped.
TEST_F(OnATerminal, ALauncherThatIsStoppedGoesOn) {
  const Folder folder;
  const std::string fifo = folder.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int lines = ::open(fifo.c_str(), O_RDWR | O_CLOEXEC);
  const std::string rank = "echo ready; read line <'" + fifo + "'; echo went on";
  const std::string shell = "set -m; \"$0\" launch -n 2 sh -c \"" + rank + "\"; echo stopped $?; fg; echo ended $?";
  Terminal terminal({"bash", "-c", shell, procs::kZero}, variables());
  ASSERT_TRUE(terminal.shows("ready\r\n", 2)) << terminal.text();
  terminal.type("\x1a");
  ASSERT_TRUE(terminal.shows("stopped " + std::to_string(128 + SIGTSTP))) << terminal.text();
  EXPECT_EQ(::write(lines, "\n\n", 2), 2);
  EXPECT_TRUE(terminal.shows("ended 0")) << terminal.text();
  EXPECT_TRUE(terminal.shows("went on\r\n", 2)) << terminal.text();
  EXPECT_EQ(terminal.end(), 0);
  ::close(lines);
}

// "/autogroup-14 nice 5". Nothing of a kernel that has no such groups, and of a session that began before them.
struct SchedulingGroup {
  explicit SchedulingGroup(pid_t process) {
    std::istringstream in(procs::read_all("/proc/" + std::to_string(process) + "/autogroup"));
    std::string word;
    in >> name >> word >> niceness;
  }

  std::string name;
  int niceness = 0;
};

class RanksOfALauncher : public NothingStays {
 protected:
  static Words command() { return zero({"launch", "-n", "2", "sh", "-c", "echo ready; exec sleep 3600"}); }

  // Of a launcher of this command.
  void expect_apart(const Words& command, int niceness) const {
    Program program(command, variables());
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(contains(program.line(), "ready"));
    const SchedulingGroup launchers(program.pid());
    std::set<pid_t> sessions{::getsid(program.pid())};
    std::multiset<std::string> groups;
    for (int i = 0; i < 2; ++i) {
      const pid_t rank = rank_of(program, i);
      EXPECT_EQ(::getsid(rank), rank);
      EXPECT_EQ(::getpgid(rank), rank);
      sessions.insert(::getsid(rank));
      const SchedulingGroup own(rank);
      groups.insert(own.name);
      EXPECT_EQ(own.niceness, own.name.empty() ? 0 : std::min(launchers.niceness + niceness, 19));
    }
    EXPECT_EQ(sessions.size(), 3U);
    const bool none = launchers.name.empty() && groups.count({}) == groups.size();
    groups.insert(launchers.name);
    for (const std::string& group : groups)
      EXPECT_TRUE(none || groups.count(group) == 1) << "the scheduler's: " << group;
    ::kill(program.pid(), SIGTERM);
    EXPECT_EQ(program.finish().code, 128 + SIGTERM);
  }
};

TEST_F(RanksOfALauncher, HaveSessionsAndSoSharesOfTheCoresOfTheirOwn) {
  expect_apart(command(), ::getpriority(PRIO_PROCESS, 0));
}

TEST_F(RanksOfALauncher, AreAsNiceAsItWas) {
  const int niceness = std::min(::getpriority(PRIO_PROCESS, 0) + 5, 19);
  expect_apart(procs::joined({"nice", "-n", "5"}, command()), niceness);
}

}  // namespace terminal_test
