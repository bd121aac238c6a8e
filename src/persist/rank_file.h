// One rank's file of a checkpoint: a valid safetensors file, written from a snapshot, its checksums on the way. No
// torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "persist/env.h"
#include "persist/manifest.h"
#include "persist/snapshot.h"
#include "persist/write_behind.h"

namespace zero {

class RankFile {
 public:
  // Bytes that a checksum covers, at most: what is verified where a few of them are wanted.
  static constexpr std::int64_t kPiece = std::int64_t{16} << 20;

  // In `folder`, which is there.
  RankFile(Env& env, const std::string& folder, const Snapshot& snapshot);

  // Writes so many bytes more, or all that is left, and at most the rest of the slice that they end in.
  void write(std::int64_t bytes);
  // When all is written: brings it to the disk, and tells what is where.
  RankPart finish();

 private:
  struct Piece {
    std::size_t slice;
    StoredBytes at;  // offset: in the memory
  };
  std::string header(std::int64_t alignment);
  void write_copy();
  void gather();
  void look(const char* bytes, std::int64_t count);
  StoredPiece stored(const Piece& piece) const;

  const Snapshot& snapshot_;
  std::vector<Piece> pieces_;  // in the order of the memory, without gaps
  RankPart part_;
  std::optional<WriteBehind> file_;
  Hasher hasher_;
  std::int64_t asked_ = 0;             // of the memory, to be written so far
  std::int64_t looked_ = 0;            // at, so far
  std::size_t slice_ = 0, piece_ = 0;  // at hand
};

}  // namespace zero
