// What there is in a folder of checkpoints, and which one a path means, without a look at what is in tensors. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "persist/env.h"
#include "persist/manifest.h"

namespace zero {

enum class FolderState {
  complete,  // the manifest is whole, and every file is there in its length
  damaged,
  partial,  // leftovers, see persist/folders.h
  replaced,
  removed,
};
std::string_view name(FolderState state);

struct ListedFolder {
  std::int64_t step = 0;
  std::string name = {};
  FolderState state = FolderState::complete;
  std::int64_t bytes = 0;  // of the files that are there
  std::string plan = {};   // in words; empty where the manifest is not whole
  int ranks = 0;           // likewise 0
  std::string fault = {};  // of a checkpoint that is damaged: the first thing that is wrong
  bool left = false;       // of a checkpoint: the newest does not go on from it, for the run went back before it
  bool operator==(const ListedFolder&) const = default;
};

// By step, each step's leftovers behind its checkpoint. One that vanishes meanwhile is left out. Throws CheckpointError
// where the folder cannot be read.
std::vector<ListedFolder> list_folders(Env& env, const std::string& folder);

// What a path that somebody gave leads to. Throws ConfigError where nothing is there, or neither of these.
enum class PathKind { checkpoint, folder };  // a checkpoint, of whatever name; a folder of checkpoints
PathKind kind_of(Env& env, const std::string& path);

// The checkpoints that it means: itself, or those in the folder, the newest last (see persist/retention.h). Throws
// ConfigError where there are none.
std::vector<std::string> checkpoints_at(Env& env, const std::string& path);

// Of its files, as it says.
std::int64_t bytes_of(const Manifest& manifest);

}  // namespace zero
