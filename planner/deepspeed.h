// Reads DeepSpeed's configuration: its keys become a plan, and every key that does not is named. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "partition/plan_settings.h"

namespace planner {

struct DeepSpeed {
  // What it says; nothing where the key is absent or "auto".
  std::optional<std::string> plan, optimizer;
  std::optional<std::int64_t> batch;  // of a micro-batch
  zero::PlanSettings settings;
  std::optional<int> shard_ranks;  // of a shard group
  std::optional<double> lr, clip;

  // Sentences, the key first, nested ones with dots.
  std::vector<std::string> taken;
  std::vector<std::string> not_needed;  // changes neither memory nor the plan, and what libzero does instead
  std::vector<std::string> automatic;   // "auto": left to the command line
};

// What is known from elsewhere, for what the configuration leaves open.
struct Known {
  std::optional<std::int64_t> batch = {};
  std::optional<int> accumulate = {};
};

// Throws zero::ConfigError: for what is no JSON object, and, all at once, for batch sizes that contradict each other on
// so many ranks, values that cannot be, keys that are not known, and features that this version does not have, unless
// they are switched off. `source` says in errors whose text it is.
DeepSpeed deepspeed_from_json(const std::string& text, const std::string& source, int ranks, const Known& known = {});
DeepSpeed read_deepspeed(const std::string& path, int ranks, const Known& known = {});

}  // namespace planner
