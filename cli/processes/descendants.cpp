#include "cli/processes/descendants.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

namespace cli {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

// The name of the program, in brackets, may hold anything.
pid_t parent_of(const std::string& process) {
  std::ifstream in("/proc/" + process + "/stat");
  std::string text;
  std::getline(in, text, '\0');
  const auto name_end = text.rfind(')');
  if (name_end == text.npos || name_end + 4 >= text.size()) return 0;
  return std::atoi(text.c_str() + name_end + 4);
}

}  // namespace

Reaper::Reaper() {
  ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Reaper::~Reaper() {
  ::prctl(PR_SET_CHILD_SUBREAPER, before_);
}

std::vector<pid_t> children() {
  std::vector<pid_t> found;
  const std::unique_ptr<DIR, CloseFolder> folder(::opendir("/proc"));
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr)
    if (const pid_t process = std::atoi(entry->d_name); process > 0 && parent_of(entry->d_name) == ::getpid())
      found.push_back(process);
  return found;
}

// A child keeps its number until it is waited for, so that nobody else is hit.
void end_descendants(const std::vector<pid_t>& spared) {
  for (bool some = true; some;) {
    std::vector<pid_t> killed;
    for (const pid_t process : children())
      if (std::ranges::count(spared, process) == 0 && ::kill(process, SIGKILL) == 0) killed.push_back(process);
    for (const pid_t process : killed) ::waitpid(process, nullptr, __WALL);
    some = !killed.empty();
  }
}

}  // namespace cli
