#include "planner/memory_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "base/system_files.h"

namespace planner {
namespace {

namespace fs = std::filesystem;

// None for "max" too.
std::optional<std::int64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  std::int64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

struct Files {
  const char* limit;
  const char* used;
  const char* cache[2];  // fields of memory.stat: what can be dropped
};
constexpr Files kVersion1{
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
constexpr Files kVersion2{"memory.max", "memory.current", {"inactive_file", "active_file"}};

std::optional<std::int64_t> left_in(const zero::MemoryGroup& group) {
  const Files& files = group.version == 1 ? kVersion1 : kVersion2;
  const auto limit = number_in(group.folder / files.limit), used = number_in(group.folder / files.used);
  if (!limit || !used) return {};
  std::int64_t cache = 0;
  for (const char* field : files.cache) cache += zero::field_of(group.folder / "memory.stat", field).value_or(0);
  return std::max<std::int64_t>(*limit - *used + std::min(cache, *used), 0);
}

std::optional<std::int64_t> limit_of(decltype(RLIMIT_DATA) resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<std::int64_t>::max()));
}

}  // namespace

ProcessLimits limits_of_process() {
  constexpr std::int64_t kUnlimitedStack = std::int64_t{2} << 20;  // what glibc gives a thread then
  return {limit_of(RLIMIT_DATA), limit_of(RLIMIT_AS), limit_of(RLIMIT_STACK).value_or(kUnlimitedStack)};
}

std::optional<Room> room_of_processes(int count, const ProcessLimits& limits, const fs::path& root) {
  constexpr std::int64_t kThreads = 10;  // of the engine, its stores, autograd and operators
  std::optional<Room> room;
  const auto look = [&](const std::optional<std::int64_t>& limit, const char* field, const char* what) {
    const auto taken = zero::field_of(root / "proc/self/status", field);
    if (!limit || !taken) return;
    const std::int64_t left = std::max<std::int64_t>(*limit - *taken * 1024 - kThreads * limits.stack, 0);
    const std::int64_t bytes = left > std::numeric_limits<std::int64_t>::max() / count
                                   ? std::numeric_limits<std::int64_t>::max()
                                   : left * count;
    if (!room || bytes < room->bytes) room = Room{bytes, what};
  };
  look(limits.data, "VmData:", "the limit of a process's data (ulimit -d)");
  look(limits.addresses, "VmSize:", "the limit of a process's addresses (ulimit -v)");
  return room;
}

std::optional<Room> room_of_host(const fs::path& root) {
  const auto available = zero::field_of(root / "proc/meminfo", "MemAvailable:");
  if (!available) return {};
  const std::int64_t swap = zero::field_of(root / "proc/meminfo", "SwapFree:").value_or(0) * 1024;
  Room room{*available * 1024 + swap, "the host's memory"};
  for (const zero::MemoryGroup& group : zero::memory_groups(root)) {
    const auto left = left_in(group);
    if (left && *left + swap < room.bytes) room = {*left + swap, "the limit of control group " + group.name};
  }
  return room;
}

}  // namespace planner
