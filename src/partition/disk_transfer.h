// How long the stretches of arrays are that go to and from disks. No torch.
#pragma once

#include <cstdint>

namespace zero {

// Bytes of an array of the widest elements in a stretch: an operation's, where options say how large these are, else
// those of two of the largest that are tried, so that while one stretch is waited for the next keeps the disk busy.
constexpr std::int64_t disk_transfer(std::int64_t block) {
  return block > 0 ? block : std::int64_t{2} << 20;
}

}  // namespace zero
