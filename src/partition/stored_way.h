// How the values of activations come back that were stored when these lost their memory: by a link or a disk, or
// decoded from fewer bits.
#pragma once

#include <cstdint>

namespace zero {

// Bytes of a storage from which on its memory goes and comes, and from which on its values may be stored.
inline constexpr std::int64_t kLeastPaged = 1024, kLeastStored = 64 * 1024;
// Nanoseconds a byte, there and back, by disks and by a link to the host, as long as nothing was measured:
// a disk of 1 GB a second, and about what PCIe 4 gives.
inline constexpr double kUsualOfDisk = 2, kUsualOfLink = 2.0 / 25;

struct StoredWay {
  double nanoseconds_a_byte = -1;  // there and back; negative: there is no such way
  bool exact = true;               // what comes of it is the same; else only who touches it gets it

  explicit operator bool() const { return nanoseconds_a_byte >= 0; }
  bool operator==(const StoredWay&) const = default;
};

}  // namespace zero
