// A program under test: its output, its exit, and whatever it leaves behind.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace procs {

using Variables = std::map<std::string, std::string>;

struct Result {
  int code = 0;  // exit code, or minus the signal
  std::string out;
  std::string err;
};

inline std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

class Program {
 public:
  static std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (std::string& text : strings) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
  }

  // No launcher but the one under test, one thread, and what the test asks for.
  static std::vector<std::string> with_ours(Variables variables) {
    variables.emplace("OMP_NUM_THREADS", "1");
    std::vector<std::string> result;
    for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
    for (const char* name : {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"})
      if (const char* value = std::getenv(name); value && !variables.contains(name))
        result.push_back(std::string(name) + "=" + value);
    return result;
  }

  explicit Program(std::vector<std::string> arguments, Variables variables = {}) {
    std::vector<std::string> environment = with_ours(std::move(variables));
    const auto argv = pointers(arguments), envp = pointers(environment);
    error_ = ::memfd_create("stderr", MFD_CLOEXEC);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) become(argv.data(), envp.data(), ends[1]);
    ::close(ends[1]);
    output_ = ends[0];
  }
  ~Program() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
    ::close(output_);
    ::close(error_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }

  // The next line of its standard output, empty at the end.
  std::string line() {
    std::string text;
    for (char c; ::read(output_, &c, 1) == 1 && c != '\n';) text += c;
    result_.out += text + '\n';
    return text;
  }

  // Waits until whoever writes into its standard output would have to wait.
  void stall() const {
    const int writer = ::open(("/proc/self/fd/" + std::to_string(output_)).c_str(), O_WRONLY | O_CLOEXEC);
    for (pollfd room{writer, POLLOUT, 0}; ::poll(&room, 1, 0) > 0;) ::usleep(1000);
    ::close(writer);
  }

  // Whether it ends in this time. Its output must fit a pipe.
  bool ends_within(std::chrono::milliseconds time) const {
    pollfd end{static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)), POLLIN, 0};
    const bool ended = ::poll(&end, 1, static_cast<int>(time.count())) > 0;
    ::close(end.fd);
    return ended;
  }

  std::string error_so_far() const { return read_all("/proc/self/fd/" + std::to_string(error_)); }

  Result finish() {
    char buffer[4096];
    for (ssize_t got; (got = ::read(output_, buffer, sizeof buffer)) > 0;)
      result_.out.append(buffer, static_cast<std::size_t>(got));
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    result_.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    result_.err = error_so_far();
    return result_;
  }

 private:
  [[noreturn]] void become(char* const* argv, char* const* envp, int output) const {
    ::dup2(output, 1);
    ::dup2(error_, 2);
    for (int each : {SIGINT, SIGTERM, SIGHUP}) ::signal(each, SIG_DFL);
    ::execvpe(argv[0], argv, envp);
    ::_exit(127);
  }

  pid_t pid_ = -1;
  int output_ = -1;
  int error_ = -1;
  Result result_;
};

inline Result run(std::vector<std::string> arguments, Variables variables = {}) {
  return Program(std::move(arguments), std::move(variables)).finish();
}

// While it lives, processes that lose their parent become children of this one.
class Orphanage {
 public:
  Orphanage() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~Orphanage() { ::prctl(PR_SET_CHILD_SUBREAPER, 0); }
  Orphanage(const Orphanage&) = delete;
  Orphanage& operator=(const Orphanage&) = delete;

  // Waits for all of them. Returns how many were not killed but ended by themselves.
  int survivors() const {
    int count = 0;
    for (int status = 0; ::waitpid(-1, &status, 0) > 0;) count += !WIFSIGNALED(status);
    return count;
  }
};

inline bool alive(pid_t pid) {
  return ::kill(pid, 0) == 0;
}

// The processes whose environment has the entry `name=value`.
inline std::vector<pid_t> processes_with(const std::string& name, const std::string& value) {
  const std::string zero(1, '\0'), mark = zero + name + "=" + value + zero;
  std::vector<pid_t> found;
  DIR* const folder = ::opendir("/proc");
  while (const dirent* entry = ::readdir(folder))
    if ((zero + read_all(std::string("/proc/") + entry->d_name + "/environ")).find(mark) != std::string::npos)
      found.push_back(std::atoi(entry->d_name));
  ::closedir(folder);
  return found;
}

// A line of /proc/PROCESS/status, without its name.
inline std::string status_of(pid_t process, const std::string& name) {
  const std::string text = read_all("/proc/" + std::to_string(process) + "/status");
  const auto begin = text.find("\n" + name + ":\t");
  return begin == std::string::npos
             ? ""
             : text.substr(begin + name.size() + 3, text.find('\n', begin + 1) - begin - name.size() - 3);
}

inline pid_t parent_of(pid_t process) {
  return std::atoi(status_of(process, "PPid").c_str());
}

// The process that `launcher` runs as rank `rank`, or 0. Between the two is the keeper.
inline pid_t rank_of(pid_t launcher, int rank) {
  for (pid_t process : processes_with("RANK", std::to_string(rank)))
    if (parent_of(parent_of(process)) == launcher) return process;
  return 0;
}

// Stops a process where it is. False: it has ended, or is about to, by itself.
inline bool stopped(pid_t process) {
  if (process <= 0 || ::kill(process, SIGSTOP) != 0) return false;
  for (;;) {
    const std::string state = status_of(process, "State").substr(0, 1);
    if (state == "T") return true;
    if (state.empty() || state == "Z" || state == "X") return false;
  }
}

// Kills a launcher while all of its ranks run, which stay where they are until they are killed, too. False: some had
// not begun, or have ended by themselves, and it goes on.
inline bool kill_in_the_middle(pid_t launcher, int ranks) {
  std::vector<pid_t> held;
  for (int rank = 0; rank < ranks; ++rank)
    if (const pid_t process = rank_of(launcher, rank); stopped(process)) held.push_back(process);
  if (static_cast<int>(held.size()) == ranks) return ::kill(launcher, SIGKILL) == 0;
  for (const pid_t process : held) ::kill(process, SIGCONT);
  return false;
}

}  // namespace procs
