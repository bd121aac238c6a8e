// zero checkpoint list | show | verify | diff | prune: what checkpoints hold, whether it is what was written, and in
// what they differ. No torch.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "models/json.h"
#include "models/schema.h"
#include "persist/checkpoint_reader.h"

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
}

namespace cli {

struct CheckpointOptions {
  int (*run)(const CheckpointOptions& options) = nullptr;  // the subcommand that was given
  std::string path;                                        // a checkpoint, or a folder of them
  std::string other;                                       // of diff
  bool all = false;                                        // of show: every layer
  bool dry_run = false;                                    // of prune, with those below
  std::int64_t keep = 0;
  std::int64_t keep_every = 0;
  std::string json;  // "-" is standard output, which has nothing else then
};

// The command with its subcommands.
CLI::App* add_checkpoint_command(CLI::App& app, CheckpointOptions& options);

// What is wrong is for people to see here: they return 0 whatever they find.
int list_checkpoints(const CheckpointOptions& options);
int show_checkpoint(const CheckpointOptions& options);
// Returns 1 where something is wrong.
int verify_checkpoints(const CheckpointOptions& options);
// Returns 1 where they differ. What is damaged is an error, a ConfigError as what cannot be read is.
int diff_checkpoints(const CheckpointOptions& options);
int prune_checkpoints(const CheckpointOptions& options);

// What they have in common.

// Where text for people goes; null: nowhere, since the JSON has standard output.
std::ostream* text_of(const CheckpointOptions& options);
// Throws UsageError and zero::ConfigError where the JSON cannot be written, or would lie where is read.
void check_output(const CheckpointOptions& options);
void write_json(const CheckpointOptions& options, const models::Json& json);
// The folder of checkpoints that was given. Throws zero::ConfigError where it is none.
void require_folder(const CheckpointOptions& options);
// The checkpoint that a path means, in a folder the newest. Throws zero::ConfigError.
zero::Checkpoint open_checkpoint(const std::string& path);
// "runs/7/step-000100: step 100, zero3 bf16, 4 ranks"
std::string heading(const zero::Checkpoint& checkpoint);

}  // namespace cli
