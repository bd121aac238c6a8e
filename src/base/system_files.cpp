#include "base/system_files.h"

#include <fstream>

namespace zero {
namespace {

namespace fs = std::filesystem;

void add_up_from(const std::string& group, int version, const fs::path& mount, std::vector<MemoryGroup>& groups) {
  for (fs::path name = group;; name = name.parent_path()) {
    groups.push_back({version, mount / name.relative_path(), name.string()});
    if (!name.has_relative_path()) return;
  }
}

}  // namespace

std::optional<std::int64_t> field_of(const fs::path& file, std::string_view field) {
  std::ifstream in(file);
  for (std::string word; in >> word;)
    if (std::int64_t value = 0; word == field && in >> value) return value;
  return {};
}

// Lines are "number:controllers:group"; version 2 has no controllers there.
std::vector<MemoryGroup> memory_groups(const fs::path& root) {
  const fs::path mounts = root / "sys/fs/cgroup";
  std::vector<MemoryGroup> groups;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,")
      for (const char* mount : {"", "unified"}) add_up_from(group, 2, mounts / mount, groups);
    if (controllers.find(",memory,") != std::string::npos) add_up_from(group, 1, mounts / "memory", groups);
  }
  return groups;
}

}  // namespace zero
