// What can be known of a run before LibTorch is loaded and ranks are started. No torch.
#pragma once

#include <string>

#include "cli/commands/commands.h"
#include "cli/options/options.h"
#include "models/llama_config.h"
#include "planner/memory_limit.h"

namespace cli {

// Everything that options and files can have wrong, but for the device, and the room, which depends on it. `ranks`: 0
// where a launcher knows them. Throws UsageError, or zero::ConfigError for files and folders that are missing or not
// what they should be.
void check_settings(const RunOptions& options, int ranks);

void check_settings(const ProfileOptions& options);
void check_settings(const EvalOptions& options);

// The file that a profile is written to.
std::string output_of(const ProfileOptions& options);

// Throws UsageError where the tokens of a run on so many ranks are more than 64 bits count.
void check_count(const RunOptions& options, int ranks);

// Throws zero::ConfigError where the activations of the first of the options' plans cannot keep to their budget.
void check_activation_budget(const RunOptions& options, const models::LlamaConfig& model, int ranks);

// Throws zero::Error where `here` of the ranks, those of this host, will not find the memory that a run needs, unless
// the options say that it is not to be checked, and zero::ConfigError as check_activation_budget(). The options name
// the device.
void check_room(const RunOptions& options, int ranks, int here);
// The same of the first of the options' plans and of so much room: says what the ranks need and what would fit. What is
// counted is what the run is certain to hold.
void check_room(const RunOptions& options, const models::LlamaConfig& model, int ranks, int here,
                const planner::Room& room);

// Throws zero::ConfigError, naming the path, where an output cannot be written; leaves nothing behind.
void check_outputs(const RunOptions& options);

}  // namespace cli
