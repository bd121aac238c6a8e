// The plan file: a setting that `zero plan` chose and `zero train --plan FILE` runs. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "zero/plan.h"

namespace planner {

struct PlanFile {
  std::string plan = "zero3";  // a preset
  std::string precision = "bf16";
  int accumulate = 1;
  bool reproducible = false;
  std::int64_t resident_budget = 0;  // 0: the two largest units
  std::string reduce_in = {};        // fp32, bf16, fp16; empty: the plan's choice
  std::string gather_in = "native";  // or fp8
  std::string offload = {};          // see offloaded()
  bool delay_update = false;
  std::string optimizer = "adamw";  // as --optimizer names it
  int ranks = 1;
  int shard_ranks = 0;     // of a shard group; 0: all
  std::string model = {};  // a preset or a config.json; empty: not said
  std::int64_t batch = 4;
  std::int64_t seq = 128;
  std::string command = {};  // that wrote it; empty: not said

  bool operator==(const PlanFile&) const = default;
};

std::string to_json(const PlanFile& file);
// Keys that are missing have their defaults; "plan" may not be. Throws zero::ConfigError, naming `source` and the key,
// for what is unknown, of another type or impossible.
PlanFile plan_file_from_json(const std::string& text, const std::string& source);
PlanFile read_plan_file(const std::string& path);

// Throws zero::ConfigError for what cannot work on the file's mesh.
zero::Plan plan_of(const PlanFile& file);

}  // namespace planner
