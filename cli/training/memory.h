// The process's resident memory, as the kernel counts it.
#pragma once

#include <cstdint>

namespace cli {

// The largest resident size of the process from now on, the program and its libraries included. Memory that ranks share
// counts by this rank's share of it.
class PeakMemory {
 public:
  PeakMemory();
  std::int64_t bytes() const;
};

}  // namespace cli
