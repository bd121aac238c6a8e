#include "out_of_memory.h"

#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace cli {
namespace {

std::optional<std::int64_t> count_in(const std::string& path) {
  std::ifstream in(path);
  std::int64_t count = 0;
  for (std::string name; in >> name;)
    if (name == "oom_kill" && in >> count) return count;
  return {};
}

// Where the files of this process's control groups may lie: of version 2, alone or beside version 1, and of version 1.
// A container may see its own group as the root.
std::vector<std::string> group_files(const std::string& root) {
  std::vector<std::string> files;
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string number, controllers, path;
    std::getline(std::getline(std::getline(fields, number, ':'), controllers, ':'), path);
    const std::string groups = root + "/sys/fs/cgroup";
    for (const std::string& place : {path, std::string()}) {
      if (number == "0")
        for (const char* mount : {"", "/unified"}) files.push_back(groups + mount + place + "/memory.events");
      if (("," + controllers + ",").find(",memory,") != std::string::npos)
        files.push_back(groups + "/memory" + place + "/memory.oom_control");
    }
  }
  return files;
}

}  // namespace

std::optional<std::int64_t> memory_kills(const std::string& root) {
  for (const std::string& file : group_files(root))
    if (const auto count = count_in(file)) return count;
  return count_in(root + "/proc/vmstat");
}

}  // namespace cli
