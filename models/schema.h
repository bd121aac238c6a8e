// What each JSON file of the program says of itself: {"schema": "zero.plan/1", "version": "0.1.0", ...}. docs/json.md
// has all of their keys. No torch.
#pragma once

#include <string>
#include <string_view>

#include "models/json.h"

namespace models {

// The version grows when a key changes its meaning or is no longer written; new keys leave it as it is.
struct Schema {
  std::string_view name;
  int version = 1;
};
inline constexpr Schema kReport{"zero.report", 2}, kPlan{"zero.plan"}, kPlanFile{"zero.plan-file"},
    kProfile{"zero.profile"}, kCheckpointList{"zero.checkpoint-list"}, kCheckpointShow{"zero.checkpoint-show"},
    kCheckpointVerify{"zero.checkpoint-verify"}, kCheckpointDiff{"zero.checkpoint-diff"},
    kCheckpointPrune{"zero.checkpoint-prune"}, kEval{"zero.eval"}, kExport{"zero.export"},
    kBenchDisk{"zero.bench-disk"};

std::string_view program_version();

// An object that begins with the schema and the program's version.
Json stamped(const Schema& schema);

// Takes both away from what was read; an object without them is an older one. Throws zero::ConfigError, naming
// `source`, for another schema, and for a version of it that is newer than ours.
void take_stamp(Json& json, const Schema& schema, const std::string& source);

}  // namespace models
