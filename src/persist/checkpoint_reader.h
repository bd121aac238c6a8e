// Reads checkpoints: only what is asked for, and nothing that is not what was written. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "persist/env.h"
#include "persist/manifest.h"
#include "zero/state.h"

namespace zero {

class Checkpoint {
 public:
  // Of a folder as write_checkpoint() returns it. Throws CheckpointError unless its manifest is whole.
  static Checkpoint open(Env& env, const std::string& folder);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

 private:
  std::string folder_;
  Manifest manifest_;
};

// Reads stored bytes, each checked against its checksum, as they were read, before any of it is used. One thread.
class VerifiedFiles {
 public:
  // Which stay.
  VerifiedFiles(Env& env, const Checkpoint& checkpoint);

  // Writes bytes [begin, end) of `stored` to `to`; `what` is whose they are. Throws CheckpointError, naming file,
  // tensor and bytes; then anything may be in `to`.
  void read(const StoredBytes& stored, std::int64_t begin, std::int64_t end, void* to, const std::string& what);

 private:
  ReadableFile& file(std::size_t index);

  Env& env_;
  const Checkpoint& checkpoint_;
  std::vector<std::unique_ptr<ReadableFile>> files_;
  // Of stored bytes of which parts were read, by file and offset: checksums of stretches of 256 KiB.
  std::map<std::pair<std::size_t, std::int64_t>, std::vector<Checksum>> stretches_;
  std::vector<char> chunk_;
};

// What an engine loads from a checkpoint. Its memory is constant but for a word for each piece, and 16 bytes for each
// 256 KiB of pieces that are read in parts. One thread.
class CheckpointSource final : public StateSource {
 public:
  // Which stay.
  CheckpointSource(Env& env, const Checkpoint& checkpoint);

  const StateScalars& scalars() const override { return checkpoint_.manifest().scalars; }
  const std::vector<StateTensor>& tensors() const override { return tensors_; }
  void read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) override;
  // All of a tensor of the program's; or bytes [begin, end) of it.
  void read_user(std::size_t tensor, void* values);
  void read_user(std::size_t tensor, std::int64_t begin, std::int64_t end, void* bytes);

 private:
  struct Wanted {  // elements [begin, end) of a tensor, to be written to `values`
    std::int64_t begin, end, item;
    char* values;
  };
  void read_piece(const StoredPiece& piece, const Wanted& wanted, const std::string& what);

  const Checkpoint& checkpoint_;
  std::vector<StateTensor> tensors_;
  std::vector<std::vector<std::int64_t>> reach_;  // by tensor: how far its pieces up to each go
  VerifiedFiles files_;
  std::vector<char> chunk_;
};

// What is wrong with a checkpoint.
struct CheckpointFault {
  std::string file;                 // in the checkpoint's folder
  std::string tensor;               // "layer.weight moment exp_avg"; empty: none, or all
  std::int64_t begin = 0, end = 0;  // bytes of the file
  std::string what;
};
std::string describe(const CheckpointFault& fault);
// The first, and how many more there are; empty where there is none.
std::string describe(const std::vector<CheckpointFault>& faults);

// Told that so many more bytes have been read; may be empty, and throws nothing.
using ReadProgress = std::function<void(std::int64_t bytes)>;

// All that is wrong, all of it read. Throws nothing but for lack of memory.
std::vector<CheckpointFault> verify(Env& env, const std::string& folder, const ReadProgress& progress = {});

}  // namespace zero
