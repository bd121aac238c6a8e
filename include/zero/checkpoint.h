// What an engine needs to go on, in a folder on disk (Engine::save, Engine::load).
//
//   zero::prepare_checkpoints(world, "runs/7");                   // before training
//   engine.save("runs/7", {.user = R"({"epoch": 3})"});           // runs/7/step-000100
//   const zero::Restored restored = engine.load("runs/7");        // the newest that is whole
//
// A checkpoint is a folder that gets its name when all that is in it is on the disk; docs/checkpoints.md describes it.
// No torch.
#pragma once

#include <cstdint>
#include <string>

namespace zero {

class World;

struct SaveOptions {
  // JSON of the program's, which load() gives back: where its data stands, say. Rank 0's counts.
  std::string user = {};
  // So many of the newest checkpoints of the folder stay, and those whose step is a multiple of `keep_every`; 0: all,
  // and none. The newest that is whole always stays.
  std::int64_t keep_last = 0;
  std::int64_t keep_every = 0;
  // Whether one of the same step that is whole may be replaced.
  bool replace = false;
};

struct Restored {
  std::string folder;
  std::int64_t step = 0;
  std::string user = {};
};

// Makes the folder, and removes what saves that were cut off left in it. Throws CheckpointError, the same on every
// rank, where ranks do not share the folder, naming them. Collective.
void prepare_checkpoints(const World& world, const std::string& folder);

}  // namespace zero
