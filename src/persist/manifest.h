// What a checkpoint consists of: manifest.json. docs/checkpoints.md describes it for readers of the file. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "persist/checksum.h"
#include "persist/element_runs.h"
#include "zero/dtype.h"
#include "zero/mesh_shape.h"
#include "zero/state.h"

namespace zero {

inline constexpr std::string_view kManifest = "manifest.json";

// Bytes [offset, offset + bytes) of a file.
struct StoredBytes {
  std::size_t file = 0;  // index into Manifest::files
  std::int64_t offset = 0, bytes = 0;
  Checksum checksum = {};
  bool operator==(const StoredBytes&) const = default;
};

// Elements of a tensor, one after the other in row-major order.
struct StoredPiece {
  StoredBytes at;
  ElementRuns elements = {};
  bool operator==(const StoredPiece&) const = default;
};

struct StoredTensor {
  StateTensor tensor;
  std::vector<StoredPiece> pieces = {};  // every element in one of them
  bool operator==(const StoredTensor&) const = default;
};

// A tensor of the program's, beside the state.
struct StoredUserTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape = {};
  std::vector<StoredBytes> pieces = {};  // one after the other
  bool operator==(const StoredUserTensor&) const = default;
};
// "order of the program"
std::string describe(const StoredUserTensor& tensor);

struct StoredFile {
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t header_bytes = 0;  // the pieces fill what follows
  Checksum header = {};
  bool operator==(const StoredFile&) const = default;
};

struct Manifest {
  std::string library = {};  // version of libzero that wrote it
  std::string plan = {};     // in words
  MeshShape mesh = {};
  StateScalars scalars = {};
  std::string user = {};  // JSON of the program's, as it was given
  std::vector<StoredFile> files = {};
  std::vector<StoredTensor> tensors = {};
  std::vector<StoredUserTensor> user_tensors = {};
  bool operator==(const Manifest&) const = default;
};

std::string library_version();

// With its checksum. Throws CheckpointError where a name is not UTF-8.
std::string to_text(const Manifest& manifest);
// Throws CheckpointError, naming `source` and the place in it, for all that to_text() does not write.
Manifest manifest_of(const std::string& text, const std::string& source);

// Each tensor's pieces in the order of their first elements.
void sort_pieces(Manifest& manifest);

// Throws CheckpointError unless every element of every tensor, and every byte of every file, is there once.
void check(const Manifest& manifest, const std::string& source);

// What one rank wrote, to be told to the one that writes the manifest: its file, and pieces of tensors by index.
struct RankPart {
  StoredFile file;
  std::vector<std::pair<std::size_t, StoredPiece>> pieces = {};
  std::vector<StoredUserTensor> user_tensors = {};
  bool operator==(const RankPart&) const = default;
};
std::string to_text(const RankPart& part);
RankPart rank_part_of(const std::string& text, const std::string& source);

}  // namespace zero
