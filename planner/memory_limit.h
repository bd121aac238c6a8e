// How much memory this host has left for a run. No torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace planner {

struct Room {
  std::int64_t bytes = 0;  // that can still be taken, swap included
  std::string limited_by;  // "the host's memory", or the control group or process whose limit is nearer
};

// The kernel's MemAvailable, or what a control group of this process (version 1 or 2, or one above it) leaves below its
// limit when its page cache is dropped. None where the kernel does not tell. `root` is what files are looked for under.
std::optional<Room> room_of_host(const std::filesystem::path& root = "/");

// Bytes that a process may have, where it is limited: of memory that it alone writes, and of addresses (ulimit -d, -v).
// A thread's stack counts as both, whatever is used of it.
struct ProcessLimits {
  std::optional<std::int64_t> data, addresses;
  std::int64_t stack = 0;
};
ProcessLimits limits_of_process();

// What so many processes can still take that have these limits, and have taken what this one has, once the threads that
// training starts have their stacks. None without limits.
std::optional<Room> room_of_processes(int count, const ProcessLimits& limits, const std::filesystem::path& root = "/");

}  // namespace planner
