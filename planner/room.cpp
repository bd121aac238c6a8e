#include "planner/room.h"

#include <algorithm>
#include <fstream>
#include <string_view>

namespace planner {
namespace {

namespace fs = std::filesystem;

// The number after `field` in a file of fields and numbers.
std::optional<std::int64_t> field_of(const fs::path& file, std::string_view field) {
  std::ifstream in(file);
  for (std::string word; in >> word;)
    if (std::int64_t value = 0; word == field && in >> value) return value;
  return {};
}

// None for "max" too.
std::optional<std::int64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  std::int64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

struct Files {
  const char* mount;
  const char* limit;
  const char* used;
  const char* cache[2];  // fields of memory.stat: what can be dropped
};
constexpr Files kVersion1{"sys/fs/cgroup/memory",
                          "memory.limit_in_bytes",
                          "memory.usage_in_bytes",
                          {"total_inactive_file", "total_active_file"}};
constexpr Files kVersion2{"sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}};

std::optional<std::int64_t> left_in(const fs::path& group, const Files& files) {
  const auto limit = number_in(group / files.limit), used = number_in(group / files.used);
  if (!limit || !used) return {};
  std::int64_t cache = 0;
  for (const char* field : files.cache) cache += field_of(group / "memory.stat", field).value_or(0);
  return std::max<std::int64_t>(*limit - *used + std::min(cache, *used), 0);
}

// From the group up. Where the groups above are hidden, as in a container, the mount shows the process's own.
void narrow(Room& room, const fs::path& mount, std::string group, const Files& files, std::int64_t swap) {
  for (;; group = fs::path(group).parent_path().string()) {
    const auto left = left_in(mount / fs::path(group).relative_path(), files);
    if (left && *left + swap < room.bytes)
      room = {*left + swap, "the limit of control group " + (group.empty() ? "/" : group)};
    if (group.empty() || group == "/") return;
  }
}

}  // namespace

std::optional<Room> room_of_host(const fs::path& root) {
  const auto available = field_of(root / "proc/meminfo", "MemAvailable:");
  if (!available) return {};
  const std::int64_t swap = field_of(root / "proc/meminfo", "SwapFree:").value_or(0) * 1024;
  Room room{*available * 1024 + swap, "the host's memory"};
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") narrow(room, root / kVersion2.mount, group, kVersion2, swap);
    if (controllers.find(",memory,") != std::string::npos) narrow(room, root / kVersion1.mount, group, kVersion1, swap);
  }
  return room;
}

}  // namespace planner
