#include "cli/processes/killed_for_memory.h"

#include "base/system_files.h"

namespace cli {

std::optional<std::int64_t> memory_kills(const std::filesystem::path& root) {
  constexpr const char* kills = "oom_kill";
  for (const zero::MemoryGroup& group : zero::memory_groups(root)) {
    const char* const file = group.version == 1 ? "memory.oom_control" : "memory.events";
    if (const auto count = zero::field_of(group.folder / file, kills)) return count;
  }
  return zero::field_of(root / "proc/vmstat", kills);
}

}  // namespace cli
