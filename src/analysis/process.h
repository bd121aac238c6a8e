// What the process holds beyond the allocators of tensors. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <istream>
#include <string>
#include <vector>

#include "zero/memory_report.h"

namespace zero {

// A line of /proc/self/smaps, and what of it counts as this process's.
struct Mapping {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string permissions;  // "rw-p"
  std::string file;         // or "[heap]"; empty: anonymous
  std::int64_t bytes = 0;   // proportional set size
  std::uint64_t page = 0;   // bytes
};
std::vector<Mapping> read_mappings(std::istream& smaps);

// What is known from elsewhere of the memory that has no name.
struct KnownMemory {
  std::uint64_t arena_begin = 0;
  std::uint64_t arena_end = 0;
  std::int64_t arena_waiting = 0;  // pages of the arena held for reuse
  std::int64_t tensors = 0;        // in malloc's memory
  std::int64_t state = 0;          // an engine's, in mappings of its own
  // Malloc's own word.
  std::int64_t malloc_used = 0;    // in its heaps
  std::int64_t malloc_mapped = 0;  // in mappings of its own
};

// The parts by kind, with what is in none of them left out.
std::vector<MemoryShare> explained(const std::vector<Mapping>& mappings, const KnownMemory& known);

// The process as it is now. `total` is the kernel's own sum. `ask` gives what is known now, but for malloc's word.
// Tries again when much came or went while it looked.
MemoryProcess this_process(const std::function<KnownMemory()>& ask);

}  // namespace zero
