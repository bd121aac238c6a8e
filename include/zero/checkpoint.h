// What an engine needs to go on, in a folder on disk (Engine::save, Engine::load).
//
//   zero::prepare_checkpoints(world, "runs/7");                   // before training
//   engine.save("runs/7", {.user = R"({"epoch": 3})"});           // runs/7/step-000100
//   const zero::Restored restored = engine.load("runs/7");        // the newest that is whole
//
//   engine.save("runs/7", {.background = true});                  // returns when the state is copied
//
// A checkpoint is a folder that gets its name when all that is in it is on the disk; docs/checkpoints.md describes it.
// No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zero/dtype.h"

namespace zero {

class World;

// A tensor of the program's, in row-major order. Its name is that of no other, on whatever rank.
struct UserTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape = {};
  const void* values = nullptr;
};

// What a save finds that another, in the background, is still under way.
enum class WhileSaving : std::uint8_t {
  wait,    // until that one has ended
  refuse,  // CheckpointError, the same on every rank; the one under way goes on
};

struct SaveOptions {
  // JSON of the program's, which load() gives back: where its data stands, say. Rank 0's counts.
  std::string user = {};
  // Of this rank, the state of its sampler, say; load() gives all ranks' to every rank. Read before save() returns.
  std::vector<UserTensor> tensors = {};
  // Without: parameters that are not trained are left out, and whoever loads keeps its own, those of a base model, say.
  bool frozen = true;
  // So many of the newest checkpoints of the folder stay, and those whose step is a multiple of `keep_every`; 0: all,
  // and none. The newest is the one that was written last, whatever its step; then come those that it goes on from,
  // and those of branches that were left by going back to an older step are the oldest. The newest that is whole always
  // stays, and so does the one that is saved.
  std::int64_t keep_last = 0;
  std::int64_t keep_every = 0;
  // Whether one of the same step that is whole may be replaced.
  bool replace = false;
  // Whether save() returns when this rank's part is copied, and all else goes on behind training. How it ended is told
  // by a StepReport of one of the next steps, or by the next save() or finish_save().
  bool background = false;
  WhileSaving while_saving = WhileSaving::wait;
};

struct LoadOptions {
  std::optional<std::int64_t> step = {};  // none: the newest that is whole (see SaveOptions::keep_last)
  // Parameters and buffers are taken over and nothing else: steps, schedule and optimizer begin, the seed is the
  // engine's own. From any optimizer and precision.
  bool weights_only = false;
  // A parameter of which the checkpoint has another optimizer's state, or not all that this engine's keeps, or in
  // another form, begins anew with its optimizer; all else goes on.
  bool allow_new_optimizer = false;
};

struct RestoredTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape = {};
  std::vector<char> values = {};  // their bytes
};

struct Restored {
  std::string folder;
  std::int64_t step = 0;
  std::string user = {};
  std::vector<RestoredTensor> tensors = {};  // of all ranks, by name
};

// The steps of the checkpoints in a folder, ascending, whole or damaged since; none where there is no folder. Throws
// CheckpointError where it cannot be read. Not collective. Any thread.
std::vector<std::int64_t> checkpoint_steps(const std::string& folder);

// Makes the folder, and removes what saves that were cut off left in it. Throws CheckpointError, the same on every
// rank, where ranks do not share the folder, naming them. Collective.
void prepare_checkpoints(const World& world, const std::string& folder);

// Of the checkpoint that `path` is, or of the newest that is whole of those in it. Throws CheckpointError where there
// is none, saying what is wrong with those that there are. Reads all of them until one is whole. Not
// collective. Any thread.
Restored find_checkpoint(const std::string& path);

}  // namespace zero
