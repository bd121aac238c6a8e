// Bytes on the wire by collective: accounted for by the calls that were made and their sizes, not counted by
// transports.
#pragma once

#include <array>
#include <cstdint>

#include "zero/communicator.h"

namespace zero {

// What one rank exchanged: bytes are those it received from other ranks (equal to those it sent,
// except for a broadcast, where every rank counts the payload once).
struct Traffic {
  struct Entry {
    std::int64_t calls = 0;
    std::int64_t bytes = 0;
    double seconds = 0;  // between the call and its completion, summed over the calls
    bool operator==(const Entry& other) const { return calls == other.calls && bytes == other.bytes; }
  };

  std::array<Entry, kCollectives> entries{};

  Entry& operator[](Collective c) { return entries[static_cast<std::size_t>(c)]; }
  const Entry& operator[](Collective c) const { return entries[static_cast<std::size_t>(c)]; }
  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const Entry& entry : entries) sum += entry.bytes;
    return sum;
  }
  bool operator==(const Traffic&) const = default;
};

}  // namespace zero
