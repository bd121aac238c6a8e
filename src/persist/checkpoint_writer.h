// Writes checkpoints: every rank its file, then one the manifest, in a folder that is given its name when everything in
// it is on the disk. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "persist/env.h"
#include "persist/lineage.h"
#include "persist/snapshot.h"
#include "zero/communicator.h"
#include "zero/mesh_shape.h"

namespace zero {

struct CheckpointOptions {
  std::string plan = {};  // in words
  MeshShape mesh = {};
  std::string user = {};  // JSON of the program's, or nothing: rank 0's counts
  // Whether a checkpoint of the same step that verifies may be replaced; one that does not verify always is.
  bool replace = false;
  // After so many bytes the ranks meet: none of them waits longer for the others than these take, and where one has
  // failed the others stop.
  std::int64_t round = std::int64_t{256} << 20;
  // Which checkpoint the run goes on from, and so, afterwards, the one that is written: rank 0's counts. Null: of none,
  // as where it is none of the folder's.
  std::shared_ptr<std::optional<Origin>> origin = {};
};

// Writes what the ranks' snapshots, all of the same step, taken or not, hold, as `folder`/step-000123, which it
// returns. Makes the folder where it is not there. Collective, on any thread: the communicator is this call's alone
// while it runs, and `env` and `snapshot` stay. Throws, the same on every rank, a CheckpointError that names each rank
// that failed, and then nothing is published; CommError when a peer is gone, or late by more than the communicator's
// time limit.
//
// The ranks meet through the communicator rather than through files, because so a rank that fails or dies is known at
// once, and on file systems that show files late, too.
std::string write_checkpoint(Env& env, const Communicator& communicator, const std::string& folder,
                             const Snapshot& snapshot, const CheckpointOptions& options);

// Throws CheckpointError for what is no JSON, or nothing.
void require_user_json(const std::string& user);

// Throws a CheckpointError, the same on every rank, that names the ranks that do not find in `folder` what rank 0 puts
// there: they have another folder of that name, each host its own, say. Makes the folder. Collective.
void require_shared_folder(Env& env, const Communicator& communicator, const std::string& folder);

}  // namespace zero
