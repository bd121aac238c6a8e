// Which checkpoints there are in a folder, which of them is the newest, and which are kept. What is there is found by
// looking: no file says which is the latest. No torch.
//
// The newest is the one that was written last, whatever its step: after a run has gone back to an older step it is on
// the branch that was begun there. Those that it goes on from come next, by time of writing, and then those that were
// left.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "persist/checkpoint_reader.h"
#include "persist/env.h"
#include "persist/lineage.h"

namespace zero {

struct CheckpointPlace {
  std::int64_t step = 0;
  std::string folder;
  Lineage lineage = {};
  bool left = false;        // the newest does not go on from it
  std::string unread = {};  // why its lineage could not be read
  bool operator==(const CheckpointPlace&) const = default;
};

// The newest last; those of which it is not known when they were written first, by step. Nothing where the folder is
// not there. What is published, whole or damaged since.
std::vector<CheckpointPlace> list_checkpoints(Env& env, const std::string& folder);

// That of one that is written now, beside these: by a run that goes on from one of them, or from none.
Lineage next_lineage(const std::vector<CheckpointPlace>& all, const std::optional<Origin>& origin);

// The newest that verifies; those that were passed over are told to `damaged`, with what is wrong.
std::optional<CheckpointPlace> newest_checkpoint(Env& env, const std::string& folder,
                                                 std::vector<std::string>* damaged = nullptr);

struct Keep {
  std::int64_t last = 0;   // so many of the newest; 0: all
  std::int64_t every = 0;  // and those whose step is a multiple; 0: none
};

// The others, by step: those that prune() removes. `progress`: of what is verified. Throws CheckpointError where it
// cannot be read of one when it was written.
std::vector<CheckpointPlace> to_prune(Env& env, const std::string& folder, const Keep& keep,
                                      std::optional<std::int64_t> good = {}, const ReadProgress& progress = {});

// Removes the others, and returns their steps. One that verifies always stays: where none of those to be kept does, the
// newest of the others that does stays too, and where none does at all, nothing is removed. `good`: a step that is
// known to verify and stays, just saved, say, so that nothing need be read. For one rank. Throws CheckpointError where
// another save or removal is under way.
std::vector<std::int64_t> prune(Env& env, const std::string& folder, const Keep& keep,
                                std::optional<std::int64_t> good = {}, const ReadProgress& progress = {});

}  // namespace zero
