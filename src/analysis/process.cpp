#include "analysis/process.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace zero {
namespace {

constexpr std::uint64_t kMallocHeap = 64 << 20;  // glibc's HEAP_MAX_SIZE: size and alignment of a thread's heap
constexpr int kAttempts = 5;                     // to look while other threads allocate and free

enum class Kind { arena, heap, shared, library, stack, unnamed };

// "BEGIN-END PERMISSIONS OFFSET DEVICE INODE FILE", numbers in hexadecimal.
bool begins_mapping(const std::string& line, Mapping& mapping) {
  std::istringstream text(line);
  char dash = 0;
  std::string offset, device, inode;
  if (!(text >> std::hex >> mapping.begin >> dash >> mapping.end) || dash != '-') return false;
  text >> mapping.permissions >> offset >> device >> inode >> std::ws;
  std::getline(text, mapping.file);
  return true;
}

std::int64_t kilobytes(const std::string& line, const std::string& key) {
  return line.starts_with(key) ? 1024 * std::stoll(line.substr(key.size())) : 0;
}

bool closed(const Mapping& mapping) {
  return mapping.file.empty() && mapping.permissions.starts_with("---");
}

// By the one page that is closed under a thread's stack.
bool guarded_below(const std::vector<Mapping>& all, std::size_t i) {
  if (i == 0) return false;
  const Mapping& guard = all[i - 1];
  return closed(guard) && guard.end == all[i].begin && guard.end - guard.begin == guard.page;
}

// Of malloc: what a thread's heap has not grown into yet is closed.
bool threads_heap(const std::vector<Mapping>& all, std::size_t i) {
  return all[i].begin % kMallocHeap == 0 && i + 1 < all.size() && closed(all[i + 1]) &&
         all[i + 1].begin == all[i].end && all[i + 1].end % kMallocHeap == 0;
}

Kind kind_of(const std::vector<Mapping>& all, std::size_t i, const KnownMemory& known) {
  const Mapping& mapping = all[i];
  if (mapping.permissions.ends_with('s')) return Kind::shared;
  if (mapping.begin >= known.arena_begin && mapping.end <= known.arena_end) return Kind::arena;
  if (mapping.file.starts_with('/')) return Kind::library;
  if (mapping.file == "[stack]") return Kind::stack;
  if (mapping.file == "[heap]" || (mapping.file.empty() && threads_heap(all, i))) return Kind::heap;
  if (mapping.file.empty() && guarded_below(all, i)) return Kind::stack;
  return Kind::unnamed;
}

std::int64_t proportional_size() {
  std::int64_t bytes = 0;
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) bytes += kilobytes(line, "Pss:");
  return bytes;
}

void ask_malloc(KnownMemory& known) {
  const struct mallinfo2 info = mallinfo2();
  known.malloc_used = static_cast<std::int64_t>(info.uordblks);
  known.malloc_mapped = static_cast<std::int64_t>(info.hblkhd);
}

}  // namespace

std::vector<Mapping> read_mappings(std::istream& smaps) {
  std::vector<Mapping> mappings;
  for (std::string line; std::getline(smaps, line);) {
    Mapping next;
    if (begins_mapping(line, next)) {
      mappings.push_back(std::move(next));
    } else if (!mappings.empty()) {
      mappings.back().bytes += kilobytes(line, "Pss:");
      mappings.back().page += static_cast<std::uint64_t>(kilobytes(line, "KernelPageSize:"));
    }
  }
  return mappings;
}

std::vector<MemoryShare> explained(const std::vector<Mapping>& mappings, const KnownMemory& known) {
  std::int64_t bytes[6] = {};
  for (std::size_t i = 0; i < mappings.size(); ++i)
    bytes[static_cast<int>(kind_of(mappings, i, known))] += mappings[i].bytes;
  const auto [arena, heap, shared, library, stack, unnamed] = bytes;
  // Of what was handed out, no more is there than was written to.
  const std::int64_t waiting = std::min(arena, known.arena_waiting);
  const std::int64_t used = std::min(heap, known.malloc_used);
  const std::int64_t state = std::min(unnamed, known.state);
  const std::int64_t mapped = std::min(unnamed - state, known.malloc_mapped);
  const std::int64_t tensors = std::min(used + mapped, known.tensors);
  return {{"tensors", arena - waiting + tensors},
          {"engine state", state},
          {"shared memory", shared},
          {"allocator slack", waiting + heap - used},
          {"heap", used + mapped - tensors},
          {"libraries", library},
          {"thread stacks", stack},
          {"other", unnamed - state - mapped}};
}

MemoryProcess this_process(const std::function<KnownMemory()>& ask) {
  MemoryProcess process;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    process.total = proportional_size();
    KnownMemory known = ask();
    ask_malloc(known);
    std::ifstream smaps("/proc/self/smaps");
    process.parts = explained(read_mappings(smaps), known);
    if (std::abs(proportional_size() - process.total) <= process.total / 100) break;
  }
  return process;
}

}  // namespace zero
