// The plan file: a setting that `zero plan` chose and `zero train --plan FILE` runs. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "partition/plan_settings.h"
#include "zero/plan.h"

namespace planner {

struct PlanFile {
  std::string plan = "zero3";  // a preset
  zero::PlanSettings settings = {{"precision", "bf16"}};
  std::string optimizer = "adamw";  // as --optimizer names it
  int ranks = 1;
  int shard_ranks = 0;     // of a shard group; 0: all
  int tensor = 1;          // ranks of the tensor axis
  std::string model = {};  // a preset or a config.json; empty: not said
  std::int64_t batch = 4;
  std::int64_t seq = 128;
  std::string recompute = "none";  // as --recompute names it
  std::int64_t loss_pieces = 1;
  std::string command = {};  // that wrote it; empty: not said

  bool operator==(const PlanFile&) const = default;
};

std::string to_json(const PlanFile& file);
// Keys that are missing have their defaults; "plan" may not be. Throws zero::ConfigError, naming `source` and the key,
// for what is unknown, of another type or impossible.
PlanFile plan_file_from_json(const std::string& text, const std::string& source);
PlanFile read_plan_file(const std::string& path);

}  // namespace planner
