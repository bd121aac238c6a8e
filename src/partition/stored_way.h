// How the values of activations come back that were stored when these lost their memory: by a link or a disk, or
// decoded from fewer bits.
#pragma once

namespace zero {

struct StoredWay {
  double nanoseconds_a_byte = -1;  // there and back; negative: there is no such way
  bool exact = true;               // what comes of it is the same; else only who touches it gets it

  explicit operator bool() const { return nanoseconds_a_byte >= 0; }
  bool operator==(const StoredWay&) const = default;
};

}  // namespace zero
