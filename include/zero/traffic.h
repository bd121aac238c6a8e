// Bytes on the wire by collective, counted by the transports where they are received, copied from a peer or read in its
// memory. What a transport sends to get there (headers, the tokens of a barrier) is not counted.
#pragma once

#include <array>
#include <cstdint>

#include "zero/communicator.h"

namespace zero {

// What one rank exchanged: bytes are those it received from other ranks, what it read of theirs in place included (in a
// broadcast every rank counts the payload once, the root what it sent).
struct Traffic {
  struct Entry {
    std::int64_t calls = 0;
    std::int64_t calls_across = 0;  // of the calls: that brought bytes from other hosts
    std::int64_t bytes = 0;
    std::int64_t across_hosts = 0;  // of the bytes: from ranks on other hosts
    std::int64_t in_place = 0;  // of the bytes: read where they lie in memory that the ranks have in common, unmoved
    double seconds = 0;         // between the call and its completion, summed over the calls
    // In steps, of the bytes, and of those across hosts: codes of values (Wire).
    std::int64_t codes = 0, codes_across = 0;

    std::int64_t within_host() const { return bytes - across_hosts; }
    void add(const Moved& moved, std::int64_t times = 1, bool coded = false) {
      calls += times;
      calls_across += moved.across_hosts > 0 ? times : 0;
      bytes += times * moved.bytes;
      across_hosts += times * moved.across_hosts;
      in_place += times * moved.in_place;
      if (!coded) return;
      codes += times * moved.bytes;
      codes_across += times * moved.across_hosts;
    }
    bool operator==(const Entry& other) const {
      return calls == other.calls && calls_across == other.calls_across && bytes == other.bytes &&
             across_hosts == other.across_hosts && in_place == other.in_place && codes == other.codes &&
             codes_across == other.codes_across;
    }
  };

  std::array<Entry, kCollectives> entries{};

  Entry& operator[](Collective c) { return entries[static_cast<std::size_t>(c)]; }
  const Entry& operator[](Collective c) const { return entries[static_cast<std::size_t>(c)]; }
  // Of all collectives.
  std::int64_t bytes() const { return sum(&Entry::bytes); }
  std::int64_t across_hosts() const { return sum(&Entry::across_hosts); }
  std::int64_t within_host() const { return bytes() - across_hosts(); }
  std::int64_t in_place() const { return sum(&Entry::in_place); }
  bool operator==(const Traffic&) const = default;

 private:
  std::int64_t sum(std::int64_t Entry::*part) const {
    std::int64_t total = 0;
    for (const Entry& entry : entries) total += entry.*part;
    return total;
  }
};

}  // namespace zero
