// The process's resident memory, as the kernel counts it.
#pragma once

#include <cstdint>

namespace cli {

// Peak resident bytes from now on, above what is resident now. Memory that ranks share counts by this rank's
// share of it.
class PeakMemory {
 public:
  PeakMemory();
  std::int64_t bytes() const;

 private:
  std::int64_t before_;
};

}  // namespace cli
