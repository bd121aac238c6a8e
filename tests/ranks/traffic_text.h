// What went over the wire, in words.
#pragma once

#include <string>

#include "zero/traffic.h"

namespace zero::test {

inline std::string text_of(const Traffic& traffic) {
  std::string text;
  for (int c = 0; c < kCollectives; ++c) {
    const Traffic::Entry& entry = traffic.entries[static_cast<std::size_t>(c)];
    text += std::string(name(static_cast<Collective>(c))) + " " + std::to_string(entry.calls) + " calls " +
            std::to_string(entry.bytes) + " bytes, " + std::to_string(entry.across_hosts) + " across hosts, " +
            std::to_string(entry.in_place) + " in place, " + std::to_string(entry.codes) + " codes, " +
            std::to_string(entry.codes_across) + " across; ";
  }
  return text;
}

}  // namespace zero::test
