// Which checkpoints there are in a folder, and which are kept. What is there is found by looking: no file says which is
// the latest. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "persist/checkpoint_reader.h"
#include "persist/env.h"

namespace zero {

struct CheckpointPlace {
  std::int64_t step = 0;
  std::string folder;
  bool operator==(const CheckpointPlace&) const = default;
};

// By step, ascending; nothing where the folder is not there. What is published, whole or damaged since.
std::vector<CheckpointPlace> list_checkpoints(Env& env, const std::string& folder);

// The newest that verifies; those that were passed over are told to `damaged`, with what is wrong.
std::optional<CheckpointPlace> newest_checkpoint(Env& env, const std::string& folder,
                                                 std::vector<std::string>* damaged = nullptr);

struct Keep {
  std::int64_t last = 0;   // so many of the newest; 0: all
  std::int64_t every = 0;  // and those whose step is a multiple; 0: none
};

// The others, by step: those that prune() removes. `progress`: of what is verified.
std::vector<CheckpointPlace> to_prune(Env& env, const std::string& folder, const Keep& keep,
                                      std::optional<std::int64_t> good = {}, const ReadProgress& progress = {});

// Removes the others, and returns their steps. One that verifies always stays: where none of those to be kept does, the
// newest of the others that does stays too, and where none does at all, nothing is removed. `good`: a step that is
// known to verify, just saved, say, so that nothing need be read. For one rank. Throws CheckpointError where another
// save or removal is under way.
std::vector<std::int64_t> prune(Env& env, const std::string& folder, const Keep& keep,
                                std::optional<std::int64_t> good = {}, const ReadProgress& progress = {});

}  // namespace zero
