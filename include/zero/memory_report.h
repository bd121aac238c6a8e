// What zero::MemoryAnalyzer found, as plain values. Bytes are bytes, seconds are counted from the analyzer's
// construction where they say when, and are durations where they say how long. No torch.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

enum class MemoryOwner : std::uint8_t {
  parameter,      // parameters and buffers of a watched module, or of an engine
  gradient,       // `.grad` of watched parameters, or an engine's accumulated gradients
  optimizer,      // a watched optimizer's state, or an engine's
  activation,     // allocated while gradients were recorded, and kept beyond its phase or into backward
  communication,  // an engine's: gathered parameters, gradients on their way, what whole-tensor optimizers exchange
  temporary,      // everything else
};
inline constexpr int kMemoryOwners = 6;
std::string_view name(MemoryOwner owner);

// Bytes by owner.
using OwnedBytes = std::array<std::int64_t, kMemoryOwners>;
inline std::int64_t& of(OwnedBytes& bytes, MemoryOwner owner) {
  return bytes[static_cast<std::size_t>(owner)];
}
inline std::int64_t of(const OwnedBytes& bytes, MemoryOwner owner) {
  return bytes[static_cast<std::size_t>(owner)];
}

// One call of record(), or one scope.
struct MemoryRecord {
  std::string tag;
  int depth = 0;               // scopes around it
  std::int64_t allocated = 0;  // at its end
  std::int64_t peak = 0;       // within
  std::int64_t reserved = 0;   // for all of the process, by the device's allocator; of the CPU also what ranks share
  std::int64_t change = 0;     // of `allocated`, from its beginning to its end
  double seconds = 0;          // how long
  double at = 0;               // when it ended
  OwnedBytes owners{};         // of `allocated`; they add up to it
};

// All records of a tag, or all times that an engine was in a phase.
struct MemoryPhase {
  std::string name;
  std::int64_t count = 0;
  std::int64_t allocated = 0;  // at the end of the last
  std::int64_t peak = 0;       // of all
  std::int64_t reserved = 0;   // at the end of the last
  std::int64_t change = 0;     // of the last
  double seconds = 0;          // of all together
};

struct MemoryShare {
  std::string name;
  std::int64_t bytes = 0;
};

// The moment with the most memory allocated, and what was allocated at it.
struct MemoryPeak {
  std::int64_t bytes = 0;
  double at = 0;
  std::string running;  // the operator whose allocation made the peak
  OwnedBytes owners{};
  std::vector<MemoryShare> units;      // modules of parameters, units of engines; "": of none; largest first
  std::vector<MemoryShare> operators;  // that allocated it, or "zero::Engine"; "": unseen, or none; largest first
};

struct MemorySample {
  double at = 0;
  std::int64_t allocated = 0;
  OwnedBytes owners{};
};

// Something an engine did. Threads are numbered as they appear; 0 is the analyzer's.
struct MemoryActivity {
  std::string name;
  std::string unit;  // empty: of none
  int thread = 0;
  double begin = 0;
  double end = 0;
};

// The process in the host's memory, beyond the allocators of tensors. Pages that processes share count in each by its
// part.
struct MemoryProcess {
  std::int64_t total = 0;          // as the kernel counts it: proportional set size
  std::vector<MemoryShare> parts;  // by kind; together within 3 % of `total`
};

struct MemoryReport {
  std::string device;                      // whose memory it is: "cpu", "cuda:1"
  std::vector<MemoryRecord> records;       // the newest 1024, in the order of their ends
  std::vector<MemoryPhase> tags;           // in the order of their first ends; from 4096 on "(other tags)"
  std::vector<MemoryPhase> phases;         // likewise
  MemoryPeak peak;                         // of all time
  std::vector<MemorySample> timeline;      // at most 4096; among neighbours the largest was kept
  std::vector<MemoryActivity> activities;  // the newest 16384, in the order of their ends
  MemoryProcess process;                   // now
};

// Tables for people. Thread-safe.
std::string to_string(const MemoryReport& report);

}  // namespace zero
